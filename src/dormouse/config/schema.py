"""The configuration of a run: three frozen sections and the rules that tie them together.

`ModelConfig`, `TrainConfig` and `DataConfig` live in their own files and are re-exported here; `RunConfig`
holds one of each. Keys are unique across the sections, so that an override needs no section name.
"""

from typing import ClassVar

from dormouse.config.model_schema import ModelConfig
from dormouse.config.run_rules import RUN_RULES
from dormouse.config.section import Rule, Section
from dormouse.config.train_schema import DataConfig, TrainConfig
from dormouse.config.unbuilt import unbuilt

__all__ = ["SECTIONS", "DataConfig", "ModelConfig", "RunConfig", "TrainConfig", "section_of", "unbuilt"]

SECTIONS: dict[str, type[Section]] = {"model": ModelConfig, "train": TrainConfig, "data": DataConfig}


class RunConfig(Section):
    """Everything a run is: what is trained, how, and on what."""

    section: ClassVar[str] = "run"
    rules: ClassVar[tuple[Rule, ...]] = RUN_RULES

    model: ModelConfig
    train: TrainConfig
    data: DataConfig = DataConfig()


def section_of(key: str) -> str | None:
    """Name of the section that has `key`, or None."""
    return next((name for name, section in SECTIONS.items() if key in section.model_fields), None)
