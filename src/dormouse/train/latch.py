"""The orthogonality latch: a factor that its number format no longer fits falls back to fp32, alone and for good.

At its cadence it measures every factor of every part of every spectral layer (an expert is a part of a bank), the
master and what the forward sees of it. A part with a factor beyond its threshold is seen in fp32 from then on; the
other parts stay as they are, to the bit. Which part, which factor, how far, and at which step is kept in the
checkpoint, written as an event, and counted on every evaluation line. In fp32 there is nothing to fall back to, so a
trip is an alert: the retraction does not hold this factor.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from dormouse.model.factor_format import FormattedLayer, formatted_layers
from dormouse.ops.polar import orthogonality_error
from dormouse.quant.latch import threshold


@dataclass(frozen=True)
class Trip:
    """One part of one layer that left its format."""

    layer: str
    part: int
    factor: str
    format: str
    step: int
    error: float
    """Orthogonality error of the master or of what the forward saw of it, whichever is larger."""
    threshold: float

    def __str__(self) -> str:
        seen = f"{self.layer}[{self.part}]: {self.factor} reads {self.error:.2e} in {self.format}"
        then = "seen in fp32 from here on" if self.format != "fp32" else "the retraction does not hold it"
        return f"latch at step {self.step}: {seen}, threshold {self.threshold:.2e}; {then}"


@dataclass(frozen=True)
class Reading:
    """Errors of one factor of every part of a layer at one check."""

    layer: str
    factor: str
    master: list[float]
    effective: list[float]
    threshold: float


@dataclass
class Latch:
    """Watches the spectral layers of one model."""

    model: nn.Module
    every: int
    """Steps between two checks; 0 = never."""
    ratio: float
    watch_fp32: bool = True
    """Whether fp32 factors can trip; without retraction nobody promises that they are orthonormal."""
    trips: list[Trip] = field(default_factory=list)

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether a multiple of `every` has passed by step `step` since the check after step `last`."""
        return self.every > 0 and step // self.every > last // self.every

    @torch.no_grad()
    def read(self) -> list[Reading]:
        """Errors of every factor; one read of the device a factor."""
        return [_read(layer, name, self.ratio) for layer in formatted_layers(self.model) for name in layer.factors]

    def check(self, step: int, readings: Sequence[Reading]) -> list[Trip]:
        """Latch the parts that `readings` show beyond their thresholds; returns the new trips."""
        formats = {layer.name: layer.format.name for layer in formatted_layers(self.model)}
        gone = {(trip.layer, trip.part) for trip in self.trips}
        new: dict[tuple[str, int], Trip] = {}
        for reading in readings:
            for part, error in enumerate(map(max, reading.master, reading.effective)):
                place, fmt = (reading.layer, part), formats[reading.layer]
                healthy = error <= reading.threshold  # false for NaN
                if healthy or place in gone or place in new or (fmt == "fp32" and not self.watch_fp32):
                    continue
                new[place] = Trip(reading.layer, part, reading.factor, fmt, step, error, reading.threshold)
        self.trips += new.values()
        apply_trips(self.model, list(new.values()))
        return list(new.values())

    def state_dict(self) -> dict:
        """The trips, as plain values."""
        return {"trips": [asdict(trip) for trip in self.trips]}

    def load_state_dict(self, state: dict) -> None:
        """Continue from saved trips: the same parts are seen in fp32."""
        self.trips = [Trip(**trip) for trip in state["trips"]]
        for layer in formatted_layers(self.model):
            layer.format.fell_back.clear()
        apply_trips(self.model, self.trips)

    def line(self) -> str:
        """What evaluation lines say of the number formats; see `tsct_line`."""
        return tsct_line(self.model, self.trips)


def apply_trips(model: nn.Module, trips: Sequence[Trip]) -> None:
    """Let `model` see the tripped parts in fp32; those that are already are only known about."""
    layers = {layer.name: layer for layer in formatted_layers(model)}
    for trip in trips:
        if trip.format != "fp32":
            layers[trip.layer].format.fell_back.add(trip.part)


def tsct_line(model: nn.Module, trips: Sequence[Trip]) -> str:
    """`tsct=fp4 latched=1/4`: the format, parts that fell back, of all; in fp32 `tsct=fp32 alerts=1/4`."""
    layers = formatted_layers(model)
    names, total = sorted({layer.format.name for layer in layers}), sum(layer.format.n_parts for layer in layers)
    latched, alerts = sum(len(layer.format.fell_back) for layer in layers), sum(t.format == "fp32" for t in trips)
    counts = [f" {word}={n}/{total}" for word, n in (("latched", latched), ("alerts", alerts)) if n]
    return f"tsct={'+'.join(names) or 'none'}{''.join(counts)}"


def _read(layer: FormattedLayer, factor: str, ratio: float) -> Reading:
    master, effective = layer.stacked(factor), layer.effective(factor)
    errors = torch.stack([orthogonality_error(x) for x in (master, effective)]).tolist()
    m, r = master.shape[-2:]
    limit = threshold(m, r, layer.format.name, layer.format.group, ratio)
    return Reading(layer.name, factor, errors[0], errors[1], limit)
