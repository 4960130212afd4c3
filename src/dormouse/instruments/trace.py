"""Reading a text with a routed model, keeping what it did with every byte.

The text is one sequence. It is read in windows that hand the carried state on, so memory does not grow with its
length and the result does not depend on where the windows are cut (up to rounding). A separator starts a new document
there, as it does in training and scoring.
"""

import math

import numpy as np
import torch
from torch import Tensor

from dormouse.data.bounds import document_starts
from dormouse.errors import ConfigError, DataError, TrainingHalted
from dormouse.instruments.byte_trace import ByteTrace
from dormouse.model.lm import Dormouse
from dormouse.model.records import RoutingRecord
from dormouse.ops.selection import select_top_k

_Piece = tuple[np.ndarray, ...]  # bits of the byte after each, ids, gates, confidence, entropy


@torch.no_grad()
def trace(model: Dormouse, data: np.ndarray, *, window: int = 512, separator: bytes | None = None) -> ByteTrace:
    """Surprisal and routing of every byte of `data`, uint8 [n], read in windows of `window` bytes.

    The model's mode is put back and no random number is drawn. Raises `ConfigError` for a model that selects no
    experts, `DataError` for a text without a scored byte, `TrainingHalted` where a surprisal is not finite.
    """
    refuse_unrouted(model.config.n_experts, model.config.moe_topk)
    if len(data) < 2:
        raise DataError(
            f"text of {len(data)} bytes: byte 0 is only read, so none would be scored; 2 bytes are the least"
        )
    was_training = model.training
    model.eval()
    try:
        pieces = _read(model, np.array(data, dtype=np.uint8), window, separator)
    finally:
        model.train(was_training)
    after, ids, gates, confidence, entropy = (np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True))
    bits = np.concatenate([[np.nan], after[:-1]])
    if not np.isfinite(bits[1:]).all():
        bad = int((~np.isfinite(bits[1:])).sum())
        raise TrainingHalted(f"{bad:,} of {len(data) - 1:,} bytes have no finite probability; nothing was written.")
    move, config = (0, 2, 1), model.config
    return ByteTrace(
        data=np.array(data),
        bits=bits,
        ids=ids.transpose(move),
        gates=gates.transpose(move),
        confidence=confidence,
        entropy=entropy,
        n_experts=config.n_experts,
        n_null=config.n_null_experts,
    )


def refuse_unrouted(n_experts: int, top_k: int) -> None:
    """Raise `ConfigError` for a configuration in which no byte has an expert of its own."""
    if n_experts == 1:
        raise ConfigError(
            "model.n_experts = 1: every byte uses the one expert there is, so nothing is routed and the page "
            "would have had one color. Inspect a run with 2 or more experts; `dormouse eval` scores this one."
        )
    if top_k == 0:
        raise ConfigError(
            f"model.moe_topk = 0: the blend runs all {n_experts} experts on every byte, so none is selected, and the "
            "page would have shown the largest weight as a choice. Inspect a run with moe_topk of 1 or more; "
            "`dormouse eval` scores this one."
        )


def _read(model: Dormouse, data: np.ndarray, window: int, separator: bytes | None) -> list[_Piece]:
    device = model.loop.rho.device
    pieces, state = [], None
    for start in range(0, len(data), window):
        stop = min(start + window, len(data))
        ids = torch.from_numpy(data[start:stop].astype(np.int64))[None].to(device)
        bounds = None
        if separator is not None:
            bounds = torch.from_numpy(document_starts(data, start, stop, separator=separator))[None].to(device)
        out = model(ids, bounds=bounds, state=state)
        state = out.state
        following = np.append(data[start + 1 : stop + 1], 0)[: stop - start]  # the last byte has none; dropped later
        targets = torch.from_numpy(following.astype(np.int64)).to(device)
        assert out.routing is not None
        pieces.append((_bits(out.logits[0], targets), *_routing(out.routing)))
    return pieces


def _bits(logits: Tensor, targets: Tensor) -> np.ndarray:
    """-log2 of each target's probability, float64 [T]."""
    log_p = logits.cpu().double().log_softmax(-1)
    return (-log_p.gather(-1, targets.cpu()[:, None])[:, 0] / math.log(2)).numpy()


def _routing(routing: RoutingRecord) -> _Piece:
    """ids and gates [P, k, T], the largest gate first, whatever bias selected them; confidence and entropy [P, T]."""
    assert routing.ids is not None
    probs, ids, gates = (t[:, 0].cpu().double() for t in (routing.probs, routing.ids, routing.gates))
    gates, order = select_top_k(gates, gates.shape[-1])
    ids = ids.long().gather(-1, order)
    nats = -torch.xlogy(probs, probs).sum(-1)
    return (
        ids.transpose(1, 2).numpy(),
        gates.transpose(1, 2).float().numpy(),
        probs.gather(-1, ids[..., :1]).squeeze(-1).float().numpy(),
        (nats / math.log(2)).float().numpy(),
    )
