"""What each parameter is, for the optimiser.

Every module names the role of its own parameters; nothing is guessed from a parameter's name or shape.
"""

from collections.abc import Iterator
from enum import StrEnum

from torch import Tensor, nn


class Role(StrEnum):
    """How a parameter is trained."""

    MATRIX = "matrix"  # dense weight [out, in]: Muon
    HEADS = "heads"  # dense weight [heads * head_dim, in]: Muon head by head
    FACTOR = "factor"  # stack of orthonormal factors [..., m, r]: Muon without decay, retracted
    TABLE = "table"  # rows that few tokens touch: row-wise Adagrad without decay
    EMBEDDING = "embedding"  # byte embedding and readout head: AdamW without decay
    CONTROL = "control"  # controller: AdamW
    VECTOR = "vector"  # gains, biases, singular values: AdamW without decay


def set_role(parameter: Tensor, role: Role) -> nn.Parameter:
    """Mark a parameter and return it."""
    assert isinstance(parameter, nn.Parameter)
    parameter.role = role  # pyrefly: ignore[missing-attribute]
    return parameter


def named_roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """All trainable parameters with their roles.

    Raises:
        TypeError: a parameter has no role.
    """
    for name, parameter in model.named_parameters():
        role = getattr(parameter, "role", None)
        if role is None:
            raise TypeError(f"parameter {name} has no role; its module must call set_role")
        yield name, parameter, role
