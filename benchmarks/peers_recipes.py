"""The peers' recipes: which model, which optimisers, which batches, which schedule.

Every recipe is one set of numbers in `RECIPES`; `build` turns it into a `Peer` that can take steps. Common to all:
fp32, gradient norm clipped at 1.0, seed 0, the training text that dormouse reads. Rates rise over a few steps, stay,
and fall linearly over the last share of the run, under the schedule class that dormouse itself uses, because a time
budget has no length in steps to stretch a cosine over before its speed is known.

The GPT with n-grams comes in three forms. `gpt-ngram` is the usual one: 2-, 3-, 4-grams as wide as the model, sparse
Adam. `gpt-ngram-tuned` has exactly the tables of dormouse's preset `tiny`, read from it: orders, rows, their width, a
start near zero, row-wise Adagrad at the same rate; and batches of 4, which suit it better. `gpt-ngram-shallow` is the
same with two layers, because with such tables the bytes read matter more than the depth in a short run.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.peers_gpt import Gpt, GptShape
from benchmarks.peers_recurrent import OrderedStreams, Recurrent
from torch import Tensor, nn

from dormouse.config.load import load_run_config
from dormouse.data.stream import TrainStream
from dormouse.train.firewall import clip, global_norm
from dormouse.train.muon import Muon, MuonParameter
from dormouse.train.schedule import Schedule
from dormouse.train.table_adagrad import TableAdagrad

SEED = 0
CLIP = 1.0
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Recipe:
    """One peer as numbers; rates are peaks."""

    kind: str  # gpt, lstm or gru
    batch: int  # sequences, or streams, a step
    length: int  # bytes of each a step
    warmup_steps: int
    decay_fraction: float
    final_fraction: float
    adam_lr: float
    adam_decay: float = 0.0  # of matrices
    shape: GptShape = field(default_factory=GptShape)
    muon_lr: float = 0.02
    muon_decay: float = 0.1
    table: str = ""  # "adam" or "adagrad" for the n-gram rows
    table_lr: float = 0.0


def _gpt(batch: int = 8, decay: float = 0.5, **extra) -> Recipe:
    """Muon at 0.02 on the blocks, AdamW at 3e-3 on the rest, down to zero."""
    return Recipe("gpt", batch, 256, 20, decay, 0.0, 3e-3, **extra)


def _tuned(layers: int) -> Recipe:
    """A GPT with the memory tables of the preset `tiny`."""
    tiny = load_run_config("tiny")
    orders, rows, width = tiny.model.engram_orders, tiny.model.engram_rows, tiny.model.engram_dim
    shape = GptShape(layers=layers, orders=tuple(orders), rows=rows, row_width=width)
    return _gpt(4, 0.6, shape=shape, table="adagrad", table_lr=tiny.train.table_lr)


def _recurrent(kind: str) -> Recipe:
    """AdamW at 4e-3, 32 streams, 64 bytes."""
    return Recipe(kind, 32, 64, 40, 0.6, 0.02, 4e-3, adam_decay=0.01)


RECIPES: dict[str, Recipe] = {
    "gpt": _gpt(),
    "gpt-ngram": _gpt(shape=GptShape(orders=(2, 3, 4)), table="adam", table_lr=1e-2),
    "gpt-ngram-tuned": _tuned(layers=5),
    "gpt-ngram-shallow": _tuned(layers=2),
    "lstm": _recurrent("lstm"),
    "gru": _recurrent("gru"),
}


class Optimizers:
    """Everything that updates one peer, behind one step."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.recipe = recipe
        gpt = model if isinstance(model, Gpt) else None
        blocks = [] if gpt is None else gpt.block_matrices()
        tables = {} if gpt is None else gpt.tables()
        taken = {id(p) for _, p, _ in blocks} | {id(p) for p in tables.values()}
        rest = [p for p in model.parameters() if id(p) not in taken]
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": recipe.adam_decay},
            {"params": [p for p in rest if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=recipe.adam_lr, betas=_BETAS, fused=True)
        cut = [MuonParameter(n, p, blocks=count, weight_decay=recipe.muon_decay) for n, p, count in blocks]
        self.muon = Muon(cut, lr=recipe.muon_lr)
        is_adam, is_adagrad = recipe.table == "adam", recipe.table == "adagrad"
        self.table_adam = torch.optim.SparseAdam(list(tables.values()), lr=recipe.table_lr) if is_adam else None
        self.table_adagrad = TableAdagrad(tables, lr=recipe.table_lr) if is_adagrad else None

    def step(self, scale: float) -> None:
        """One update at `scale` times the peak rates."""
        self.muon.step(scale)
        for group in self.adamw.param_groups:
            group["lr"] = self.recipe.adam_lr * scale
        self.adamw.step()
        if self.table_adam is not None:
            self.table_adam.param_groups[0]["lr"] = self.recipe.table_lr * scale
            self.table_adam.step()
        if self.table_adagrad is not None:
            self.table_adagrad.step(scale)


class Peer:
    """A peer in training; `step` takes the numbered step and returns its loss."""

    def __init__(self, recipe: Recipe, data: np.ndarray) -> None:
        """`data`: the training text, uint8 [n]. Seeds torch, so equal calls build equal peers."""
        torch.manual_seed(SEED)
        self.recipe = recipe
        self.bytes_per_step = recipe.batch * recipe.length
        self.model = Gpt(recipe.shape) if recipe.kind == "gpt" else Recurrent(recipe.kind)
        self.optimizers = Optimizers(self.model, recipe)
        self.streams = None
        if recipe.kind == "gpt":
            self.windows = TrainStream(data, seq_len=recipe.length, batch_size=recipe.batch, seed=SEED)
        else:
            self.windows = self.streams = OrderedStreams(data, streams=recipe.batch, piece=recipe.length)
        self._state = None

    def step(self, step: int, scale: float) -> float:
        """Train on batch `step` at `scale` times the peak rates; returns nats per byte before the update."""
        if self.streams is not None and not self.streams.continues(step):
            self._state = None
        batch = self.windows.batch(step)
        out = self.model(batch.inputs, state=self._state)
        self._state = out.state
        loss = F.cross_entropy(out.logits.flatten(0, 1), batch.targets.flatten())
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        gradients = coalesced(self.model)
        clip(gradients, global_norm(gradients), CLIP)
        self.optimizers.step(scale)
        return loss.item()

    def schedule(self, minutes: float) -> Schedule:
        """The rate over a budget of `minutes`."""
        r = self.recipe
        return Schedule(r.warmup_steps, r.decay_fraction, r.final_fraction, minutes)

    def table_parameters(self) -> int:
        """How many of the parameters are n-gram rows."""
        return sum(p.numel() for p in self.model.tables().values()) if isinstance(self.model, Gpt) else 0


def coalesced(model: nn.Module) -> list[Tensor]:
    """All gradients; sparse ones hold each row once, in place."""
    found = []
    for p in model.parameters():
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            p.grad = p.grad.coalesce()
        found.append(p.grad)
    return found
