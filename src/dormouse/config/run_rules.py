"""Rules of the train and data sections, and of a whole run; same form as `model_rules.py`."""

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dormouse.config.schema import RunConfig
    from dormouse.config.train_schema import DataConfig, TrainConfig


def length_is_steps_or_minutes(c: "TrainConfig") -> str | None:
    """Exactly one of steps and minutes."""
    if (c.steps is None) != (c.minutes is None):
        return None
    if c.steps is None:
        return (
            "train.steps = none, train.minutes = none: the run has no length; it would never have ended. "
            "Give --steps N or --minutes M."
        )
    return (
        f"train.steps = {c.steps}, train.minutes = {c.minutes}: two lengths for one run; the schedule of one "
        "would have been cut by the other. Give exactly one of them."
    )


def unescape(text: str) -> bytes:
    """Escaped text as bytes: `\\n`, `\\t`, `\\xHH`, `\\\\`; other characters are UTF-8. Raises ValueError."""
    raw, _ = codecs.escape_decode(text.encode("utf-8"))  # pyrefly: ignore[missing-attribute]
    return raw


def separator_is_escaped_bytes(c: "DataConfig") -> str | None:
    """document_separator is readable as escaped bytes."""
    if c.document_separator is None:
        return None
    try:
        unescape(c.document_separator)
    except ValueError as error:
        return (
            f"data.document_separator = {c.document_separator!r}: not escaped text ({error}); documents "
            "would not have been separated. Write for example \\n\\n, \\x00, or leave it out."
        )
    return None


def windows_fit_max_seq_len(c: "RunConfig") -> str | None:
    """Training and evaluation windows are at most model.max_seq_len bytes; longer ones are never cropped."""
    longest = c.model.max_seq_len
    long = [f"train.{key} = {getattr(c.train, key)}" for key in ("seq_len", "eval_seq_len")
            if getattr(c.train, key) > longest]  # fmt: skip
    if not long:
        return None
    return (
        f"{', '.join(long)}: longer than model.max_seq_len = {longest}; cropped windows would have run. "
        "Shorten the window, or raise max_seq_len."
    )


def future_byte_lies_within_the_window(c: "RunConfig") -> str | None:
    """A byte behind the end of every training window could not be learned from any of them."""
    if c.model.aux_fb_weight == 0 or c.model.aux_fb_horizon < c.train.seq_len:
        return None
    return (
        f"model.aux_fb_horizon = {c.model.aux_fb_horizon} with train.seq_len = {c.train.seq_len}: no window reaches "
        "that far, so a head without any target would have run. Use a horizon below seq_len, or aux_fb_weight = 0."
    )


def one_speed_while_the_length_is_measured(c: "TrainConfig") -> str | None:
    """With minutes, the passes grow after the constant part of the schedule."""
    constant = 1 - c.decay_fraction
    if c.minutes is None or c.single_pass_fraction == 0 or c.single_pass_fraction >= constant:
        return None
    return (
        f"train.single_pass_fraction = {c.single_pass_fraction} with train.minutes = {c.minutes}: the length in steps "
        f"is measured over the first {constant:.2g} of the run, in which steps would have become slower. Give at "
        f"least {constant:.2g}, or 0, or --steps."
    )


def random_depth_is_counted_in_steps(c: "TrainConfig") -> str | None:
    """A time budget is decided by the speed of few steps, which says nothing where every step costs something else."""
    if not c.random_depth or c.minutes is None:
        return None
    return (
        f"train.random_depth = true with train.minutes = {c.minutes}: the length in steps is measured while every step "
        "costs another number of passes; a run of chance length would have run. Give --steps, or random_depth = false."
    )


TRAIN_RULES = (length_is_steps_or_minutes, random_depth_is_counted_in_steps, one_speed_while_the_length_is_measured)
DATA_RULES = (separator_is_escaped_bytes,)
RUN_RULES = (windows_fit_max_seq_len, future_byte_lies_within_the_window)
