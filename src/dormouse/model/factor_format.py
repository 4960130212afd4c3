"""In which number format a forward pass sees the factors of a spectral layer or of a bank of them.

The parameters stay masters in full precision; a forward multiplies with their rounded values and the gradient goes
straight through. A part of a layer (an expert of a bank; a plain layer has one) that fell back is seen as it is. Which
parts did is no tensor: it belongs to the training state, not to the weights, so a checkpoint's weights do not depend on
the format they were trained under, and nothing is lost where tensors are moved, replaced or made without numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dormouse.model.roles import Role
from dormouse.quant import FORMATS, fake_quant

DEFAULT_GROUP = 32


class FactorFormat(nn.Module):
    """Number format of one layer's factors, with the parts that fell back to fp32."""

    def __init__(self, name: str = "fp32", group: int = DEFAULT_GROUP, *, parts: int | None = None) -> None:
        """Create the format of a layer.

        Args:
            name: a key of `dormouse.quant.FORMATS`.
            group: consecutive numbers of a factor's row that share a scale; 0 = the whole row.
            parts: leading dimension of stacked factors ``[parts, m, r]``; None for single ones ``[m, r]``.

        Raises:
            ValueError: unknown format or negative group.
        """
        super().__init__()
        if name not in FORMATS:
            raise ValueError(f"weight_format = {name!r}: no such number format; there are {', '.join(FORMATS)}")
        if group < 0:
            raise ValueError(f"format_group = {group}: must be 0 (the whole row) or more")
        self.name, self.group, self.parts = name, group, parts
        self.fell_back: set[int] = set()
        """Parts that are seen in fp32."""

    @property
    def mechanism(self) -> str | None:
        """The name counters know it by; None where a forward sees every master as it is."""
        return None if self.name == "fp32" or len(self.fell_back) == self.n_parts else "weight_format"

    @property
    def n_parts(self) -> int:
        """Parts that may fall back one by one: experts of a bank, 1 for a plain layer."""
        return self.parts or 1

    def forward(self, factor: Tensor) -> Tensor:
        """What a forward multiplies with: ``factor`` itself in fp32, else its rounded values where not fallen back."""
        if self.name == "fp32":
            return factor
        if len(self.fell_back) == self.n_parts:
            return factor
        rounded = fake_quant(factor, self.name, self.group)
        if not self.fell_back:
            return rounded
        flags = torch.tensor([part in self.fell_back for part in range(self.n_parts)], device=factor.device)
        return torch.where(flags.view(-1, 1, 1), factor, rounded)

    def extra_repr(self) -> str:
        """Name and group, for a printed model."""
        return f"{self.name}, group={self.group}"


@dataclass(frozen=True)
class FormattedLayer:
    """A module whose factors a forward sees in a number format."""

    name: str
    format: FactorFormat
    factors: dict[str, nn.Parameter]
    """Masters by attribute name: ``[m, r]``, or ``[parts, m, r]`` in a bank."""

    def stacked(self, factor: str) -> Tensor:
        """Master as ``[parts, m, r]``, outside the autograd graph."""
        master = self.factors[factor].detach()
        return master if self.format.parts is not None else master.unsqueeze(0)

    def effective(self, factor: str) -> Tensor:
        """What a forward sees, ``[parts, m, r]``, outside the autograd graph."""
        seen = self.format(self.factors[factor].detach())
        return seen if self.format.parts is not None else seen.unsqueeze(0)


def formatted_layers(model: nn.Module) -> list[FormattedLayer]:
    """Every spectral layer and bank of ``model``, in the order of its modules."""
    found = []
    for name, module in model.named_modules():
        own = vars(module).get("_modules", {}).get("weight_format")
        if isinstance(own, FactorFormat):
            roles: dict[str, Role] = vars(module).get("parameter_roles", {})
            own_parameters = dict(module.named_parameters(recurse=False))
            factors = {key: p for key, p in own_parameters.items() if roles.get(key) is Role.FACTOR}
            found.append(FormattedLayer(name, own, factors))
    return found
