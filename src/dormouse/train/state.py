"""Everything that a run carries from one step to the next, and the one dictionary it is saved as.

Model, optimiser, step (which is also the position in the data: a batch is a pure function of it), the decided
length, time already spent, skip counters, the tally since the last log line, what ran how often, the best score
so far, which step was last logged, evaluated and probed, and the three global random generators. A run resumed
from this dictionary is the same run: nothing that influences a later step lives elsewhere.
"""

import random
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dormouse.errors import CheckpointError
from dormouse.instruments.counters import Counters
from dormouse.train.balancer import Balancer
from dormouse.train.firewall import Firewall
from dormouse.train.latch import Latch
from dormouse.train.tally import Tally


class Optimizer(Protocol):
    """What the loop needs of an optimiser bundle."""

    def step(self, lr_scale: float) -> object:
        """Update every parameter from its gradient, at `lr_scale` times its group's peak rate."""

    def zero_grad(self) -> object:
        """Forget all gradients."""

    def state_dict(self) -> dict:
        """Moments and counters; tensors are references."""

    def load_state_dict(self, state: dict, /) -> object:
        """Continue from saved moments."""


@dataclass
class Progress:
    """The plain numbers of a run's state (all of them go into the checkpoint)."""

    step: int = 0
    """Optimiser steps finished, skipped ones included; the next batch is number `step`."""
    total_steps: int | None = None
    """Length of the run; None while a time budget has not decided it."""
    trained_bytes: int = 0
    """Bytes whose prediction was trained on, skipped steps included."""
    empty_steps: int = 0
    """Steps without any byte to score; they change nothing."""
    logged_step: int = 0
    evaluated_step: int = 0
    probed_step: int = 0
    saved_step: int = 0
    smooth_bpb: float | None = None
    """Training BPB, exponentially smoothed over log lines (0.8 of the old value)."""
    held_out_bpb: float | None = None
    """Result of the last evaluation."""
    best_bpb: float | None = None
    best_step: int | None = None
    n_passes: int | None = None
    """Passes that the last step trained, with random depth could have drawn; None before the first."""
    latch_step: int = 0
    """Step after which the latch last looked."""
    steps_since_retraction: int = 0
    """Steps that moved the spectral factors since they were last retracted; a skipped one does not."""
    rate_since_retraction: float = 0.0
    """Learning rate of the spectral factors, summed over the steps since they were last retracted."""

    def seen(self) -> dict[str, int]:
        """Up to which step this state has written each kind of row that depends on a cadence."""
        return {"train": self.logged_step, "eval": self.evaluated_step, "probe": self.probed_step}


@dataclass
class TrainState:
    """Model, optimiser, counters, on one device."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    firewall: Firewall
    latch: Latch
    tally: Tally
    balancer: Balancer | None = None
    """Moves the selection bias of the model's router, where it has one; holds nothing between two steps."""
    progress: Progress = field(default_factory=Progress)
    counters: Counters = field(default_factory=Counters)
    elapsed_seconds: float = 0.0
    """Wall time in the loop so far, over all starts of this run; all that differs between equal runs."""

    def __post_init__(self) -> None:
        narrow = [
            name
            for name, value in self.model.named_parameters()
            if value.is_floating_point() and value.dtype not in (torch.float32, torch.float64)
        ]
        if narrow:
            raise TypeError(f"masters are fp32, but {narrow[0]} is {self.model.get_parameter(narrow[0]).dtype}")
        self.counters.attach(self.model, self.device)

    def use_passes(self, number: int) -> None:
        """Run `number` passes through the shared block from here on."""
        self.progress.n_passes = number
        self.model.n_passes = number  # pyrefly: ignore[bad-argument-type]

    def state_dict(self) -> dict:
        """The state as nested dictionaries of tensors (references) and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "firewall": self.firewall.state_dict(),
            "latch": self.latch.state_dict(),
            "tally": self.tally.state_dict(),
            "counters": self.counters.state_dict(),
            "progress": dict(vars(self.progress)),
            "random": random_state(self.device),
            "clock": {"elapsed_seconds": self.elapsed_seconds},
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from `state_dict()`; raises `CheckpointError` when the model's tensors are others."""
        load_weights(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.firewall.load_state_dict(state["firewall"])
        self.latch.load_state_dict(state["latch"])
        self.tally.load_state_dict(state["tally"])
        self.counters.load_state_dict(state["counters"])
        self.progress = Progress(**state["progress"])
        self.elapsed_seconds = state["clock"]["elapsed_seconds"]
        set_random_state(state["random"], self.device)


def factors(model: nn.Module) -> list[nn.Parameter]:
    """The stacks of orthonormal factors of a `Dormouse`, or of a module that lists its own like one."""
    return [factor for _, factor in model.spectral_factors()]  # pyrefly: ignore[not-callable]


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy `weights` into the model; raises `CheckpointError` naming missing, extra and misshapen tensors."""
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own.keys() - weights.keys()]
    problems += [f"{name} is not in this model" for name in weights.keys() - own.keys()]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, the model's is {list(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if problems:
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(sorted(problems)[:3])}. Use the configuration in run.json."
        )
    model.load_state_dict(weights)


def random_state(device: torch.device) -> dict:
    """States of the python, numpy and torch generators (and of a CUDA `device`), as tensors and numbers."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "name": name,
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "rest": [int(position), int(has_gauss), float(cached)],
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict, device: torch.device) -> None:
    """Put back what `random_state` took."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state((numpy["name"], numpy["keys"].numpy().astype(np.uint32), *numpy["rest"]))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
