"""Where a run's routing is probed (`instruments/mixture.py`): held-out text, no gradient, the model left as it was.

In training the probe reads the first batch of the scored window, the same text every time, so that its rows can be
compared over a run. On evaluation it reads the scored batches themselves, up to a number of positions.
"""

import torch

from dormouse.data.window import EvalWindow
from dormouse.instruments.mixture import Mixture, joined, mixture
from dormouse.model.lm import Dormouse
from dormouse.model.records import LoopOutput, RoutingRecord

LARGEST = 65_536
"""Positions that an evaluation probes at most; batches beyond it are scored and not probed."""


class Collector:
    """Keeps the routing of evaluated batches, the first one whatever its size; `watch` is called with every output."""

    def __init__(self) -> None:
        self._records: list[RoutingRecord] = []
        self._positions = 0

    def watch(self, output: LoopOutput) -> None:
        """Keep one batch, if it is as long as those before and there is room for it."""
        record = output.routing
        if record is None:
            return
        number = record.probs[0, ..., 0].numel()
        length = record.probs.shape[2]
        first = not self._records
        if first or (self._positions + number <= LARGEST and length == self._records[0].probs.shape[2]):
            self._records.append(record)
            self._positions += number

    def read(self) -> Mixture | None:
        """The probe of everything kept; None when nothing was routed."""
        return mixture(joined(self._records)) if self._records else None


@torch.no_grad()
def probe(model: Dormouse, window: EvalWindow, device: torch.device) -> Mixture | None:
    """Probe `model` on the first batch of `window`; None when nothing is routed."""
    batch = next(iter(window))
    was_training = model.training
    model.eval()
    try:
        bounds = None if batch.bounds is None else batch.bounds.to(device)
        record = model(batch.inputs.to(device), bounds=bounds).routing
    finally:
        model.train(was_training)
    return None if record is None else mixture(record)
