"""What each parameter is, for the optimiser.

Every module declares the roles of its own parameters; nothing is guessed from a parameter's name or shape. The
declaration lies on the module, as a plain dictionary, so that it survives whatever replaces the parameters: a deep
copy, a pickle, a move to another device or to the meta device, an assignment of loaded weights.
"""

from collections.abc import Iterator
from enum import StrEnum

from torch import nn


class Role(StrEnum):
    """How a parameter is trained."""

    MATRIX = "matrix"  # dense weight [out, in]: Muon
    HEADS = "heads"  # dense weight [heads * head_dim, in]: Muon head by head
    FACTOR = "factor"  # stack of orthonormal factors [..., m, r]: Muon without decay, retracted
    TABLE = "table"  # rows that few tokens touch: row-wise Adagrad without decay
    EMBEDDING = "embedding"  # byte embedding and readout head: AdamW without decay
    CONTROL = "control"  # controller: AdamW
    VECTOR = "vector"  # gains, biases, singular values: AdamW without decay


def declare(module: nn.Module, **roles: Role) -> None:
    """Say which roles the parameters of ``module`` itself (not of its children) have, by attribute name."""
    module.parameter_roles = roles  # pyrefly: ignore[bad-argument-type]


def named_roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """All parameters with their roles, in the order of ``named_parameters``; a shared one once.

    Raises:
        TypeError: a module has a parameter without a role.
    """
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        roles: dict[str, Role] = vars(module).get("parameter_roles", {})
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            own = name.rpartition(".")[-1]
            if own not in roles:
                raise TypeError(f"parameter {name} has no role; {type(module).__name__} must declare it")
            yield name, parameter, roles[own]


def spectral_factors(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Every stack of orthonormal factors ``[..., m, r]`` in ``model``, with its name."""
    return [(name, p) for name, p, role in named_roles(model) if role is Role.FACTOR]
