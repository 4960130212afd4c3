"""What differs between two configurations, and what a resumed run may change.

Two arms of an experiment must differ in one factor; a resume must be the same run. Both are checked on the
finished configurations, key by key, never on the texts they came from.
"""

from dataclasses import dataclass

from dormouse.config.problems import shown
from dormouse.config.schema import SECTIONS, RunConfig
from dormouse.config.section import Section

RESUME_MAY_CHANGE = frozenset(
    {
        "steps",
        "minutes",
        "eval_every",
        "log_every",
        "probe_every",
        "save_every",
        "keep_checkpoints",
        "device",
        "threads",
    }
)


@dataclass(frozen=True)
class Difference:
    """One key with two values."""

    section: str
    key: str
    left: object
    right: object

    def __str__(self) -> str:
        return f"{self.section}.{self.key}: {shown(self.left)} -> {shown(self.right)}"


def diff_sections(left: Section, right: Section) -> list[Difference]:
    """Differences of two sections of one kind, in the schema's order."""
    return [
        Difference(left.section, key, getattr(left, key), getattr(right, key))
        for key in type(left).model_fields
        if getattr(left, key) != getattr(right, key)
    ]


def diff_configs(left: RunConfig, right: RunConfig) -> list[Difference]:
    """Differences of two whole runs: model, then train, then data."""
    return [item for name in SECTIONS for item in diff_sections(getattr(left, name), getattr(right, name))]


def resume_conflicts(saved: RunConfig, asked: RunConfig) -> list[Difference]:
    """Differences that would make a resume another run; empty when it may go on."""
    return [item for item in diff_configs(saved, asked) if item.key not in RESUME_MAY_CHANGE]
