"""In which number format a branch reads its input: rounded on the way in, the gradient straight through.

It has no weights; it is a module so that it can be seen from outside that the rounding happened.
"""

from torch import Tensor, nn

from dormouse.quant import fake_quant_activations


class ActivationFormat(nn.Module):
    """Number format of the activations ``[..., d]`` that one branch reads."""

    def __init__(self, setting: str, group: int) -> None:
        """Create the format.

        Args:
            setting: ``none``, ``8``, ``4`` or ``fp4``.
            group: channels that share a scale; 0 = one scale for the whole vector of a byte.
        """
        super().__init__()
        self.setting, self.group = setting, group

    @property
    def mechanism(self) -> str | None:
        """The name counters know it by; None when activations stay as they are."""
        return None if self.setting == "none" else "activation_format"

    def forward(self, x: Tensor) -> Tensor:
        """``x`` rounded, or itself with ``none``."""
        return fake_quant_activations(x, self.setting, self.group)

    def extra_repr(self) -> str:
        """Setting and group, for a printed model."""
        return f"{self.setting}, group={self.group}"
