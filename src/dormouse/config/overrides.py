"""One override language for the command line, experiment arms and ladder rungs.

An override is `key=value` or `section.key=value`. The value is read as TOML (`8`, `0.01`, `true`, `[2, 3,
4]`, `"text"`); anything that TOML cannot read is a bare word and taken as text, so that `layout=sequential`
and `data=books/` need no quotes. `none` unsets a key that may be unset.
"""

import tomllib
from typing import NamedTuple

from dormouse.errors import ConfigError


class Override(NamedTuple):
    """One parsed override: the key as written (with its section, if any) and its value."""

    place: str
    value: object


def parse_value(text: str) -> object:
    """A TOML value, or a list of bare words in brackets, or the text itself; dates are text too."""
    word = text.strip()
    try:
        table = tomllib.loads(f"value = {word}")
    except tomllib.TOMLDecodeError:
        is_list = word.startswith("[") and word.endswith("]")
        return [parse_value(item) for item in word[1:-1].split(",")] if is_list else word
    value = table["value"]
    plain = len(table) == 1 and isinstance(value, bool | int | float | str | list)
    return value if plain else word


def parse_override(text: str) -> Override:
    """Split `key=value`; a missing `=`, key or value is refused."""
    place, equals, value = text.partition("=")
    if not equals or not place.strip() or not value.strip():
        raise ConfigError(
            f"--set {text}: not of the form key=value; it would have been ignored. "
            'Write for example --set n_experts=8 (an empty text is key="").'
        )
    return Override(place.strip(), parse_value(value))
