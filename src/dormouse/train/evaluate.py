"""Bits per byte on a fixed window of held-out bytes.

BPB = sum of -log2 p(byte) over the scored bytes / number of scored bytes, summed in float64, so that it is
neither a mean of means nor dependent on the batch size. The window is a number of bytes; how many were scored
is checked against what the window promises. Evaluation leaves no trace: the model's mode is put back, no
random number is drawn, nothing stays attached to the graph, and no counter of the run is touched.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dormouse.data.batch import Batch
from dormouse.errors import TrainingHalted
from dormouse.model.lm import Dormouse
from dormouse.model.records import LoopOutput

Registers = Mapping[str, Sequence[tuple[int, int]]]


class Window(Protocol):
    """What evaluation reads of an `EvalWindow`."""

    window_bytes: int
    scored_bytes: int

    def __iter__(self) -> Iterator[Batch]: ...

    def positions(self, batch: Batch) -> np.ndarray:
        """int64 [B, T]: offset in the file of every target."""
        ...


class EvaluationAbandoned(Exception):  # noqa: N818
    """The run was asked to stop while evaluating; the caller saves and ends."""


@dataclass(frozen=True)
class EvalResult:
    """Score of a model on a window."""

    bpb: float
    """Bits per scored byte."""
    scored_bytes: int
    window_bytes: int
    """Size of the window that was asked for; two scores are comparable only at equal windows."""
    by_register: dict[str, float] | None
    """BPB of each kind of text in the window; None when the corpus names none."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    window: Window,
    *,
    registers: Registers | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Callable[[LoopOutput], object] | None = None,
) -> EvalResult:
    """Score `model` on `window`; `watch` sees the output of every batch.

    Raises `TrainingHalted` on a score that is not finite, `EvaluationAbandoned` when `should_stop()` says so.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    was_training, loop = model.training, model.loop if isinstance(model, Dormouse) else None
    model.eval()
    try:
        if loop is not None:
            loop.keeps_routing = watch is not None
        bits, places = _score(model, window, device, should_stop, watch, with_places=registers is not None)
    finally:
        model.train(was_training)
        if loop is not None:
            loop.keeps_routing = True
    if len(bits) != window.scored_bytes:
        raise RuntimeError(f"the window promises {window.scored_bytes} scored bytes, {len(bits)} were scored")
    bpb = float(bits.sum() / len(bits))
    if not math.isfinite(bpb):
        bad = int((~np.isfinite(bits)).sum())
        raise TrainingHalted(
            f"the evaluation is not finite: {bad:,} of {len(bits):,} scored bytes have no finite probability. "
            "Nothing was saved from this state; earlier checkpoints are as they were."
        )
    by_register = None if registers is None else _by_register(bits, places, registers)
    return EvalResult(bpb, len(bits), window.window_bytes, by_register)


def _score(
    model: nn.Module,
    window: Window,
    device: torch.device,
    should_stop: Callable[[], bool],
    watch: Callable[[LoopOutput], object] | None,
    *,
    with_places: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """(bits float64 [n], file offsets int64 [n] or empty) of every scored byte, in order."""
    bits, places = [], []
    for batch in window:
        if should_stop():
            raise EvaluationAbandoned
        bounds = None if batch.bounds is None else batch.bounds.to(device)
        output = model(batch.inputs.to(device), bounds=bounds)
        if watch is not None:
            watch(output)
        counted = batch.mask.numpy()
        bits.append(_bits(output.logits, batch.targets.to(device)).cpu().numpy()[counted])
        if with_places:
            places.append(window.positions(batch)[counted])
    return np.concatenate(bits).astype(np.float64), np.concatenate(places) if places else np.empty(0, np.int64)


def _bits(logits: Tensor, targets: Tensor) -> Tensor:
    """-log2 of each target's probability, [B, T], in float64 where the device has it."""
    precise = logits.float() if logits.device.type == "mps" else logits.double()
    return -precise.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1) / math.log(2)


def _by_register(bits: np.ndarray, places: np.ndarray, registers: Registers) -> dict[str, float]:
    """BPB of each register that has scored bytes; `registers`: name -> ranges [start, stop) of the file."""
    result = {}
    for name, ranges in registers.items():
        inside = np.zeros(len(places), dtype=bool)
        for start, stop in ranges:
            low, high = np.searchsorted(places, [start, stop])
            inside[low:high] = True
        if inside.any():
            result[name] = float(bits[inside].mean())
    return result
