"""Dormouse: a byte-level language-model trainer and laboratory.

Public names load on first use, so that `import dormouse` stays fast and free of torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dormouse.config.load import load_preset
    from dormouse.config.schema import ModelConfig, RunConfig
    from dormouse.model.bank import ExpertBank
    from dormouse.model.experts import TsctExperts
    from dormouse.model.lm import Dormouse
    from dormouse.model.spectral import SpectralLinear
    from dormouse.train.load import load_run
    from dormouse.train.packed import load_packed
    from dormouse.train.retract import retract

__version__ = "0.1.0"

_HOME = {
    "load_preset": "dormouse.config.load",
    "ModelConfig": "dormouse.config.schema",
    "RunConfig": "dormouse.config.schema",
    "Dormouse": "dormouse.model.lm",
    "ExpertBank": "dormouse.model.bank",
    "SpectralLinear": "dormouse.model.spectral",
    "TsctExperts": "dormouse.model.experts",
    "load_packed": "dormouse.train.packed",
    "load_run": "dormouse.train.load",
    "retract": "dormouse.train.retract",
}

__all__ = [
    "Dormouse",
    "ExpertBank",
    "ModelConfig",
    "RunConfig",
    "SpectralLinear",
    "TsctExperts",
    "__version__",
    "load_packed",
    "load_preset",
    "load_run",
    "retract",
]


def __getattr__(name: str) -> object:
    """Import a public name from its home module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'dormouse' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
