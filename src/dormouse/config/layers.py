"""One layer of settings: a TOML text, the overrides, or the flags, as (section, key) -> (value, origin).

A settings file is flat model keys at the top level, and optional tables `[model]`, `[train]` and `[data]`.
What cannot be used where it stands - an unknown key, a key in the wrong section, a removed key, a key given
twice - becomes a problem of the layer; nothing is dropped. Values are not judged here, that is the schema's
work.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from dormouse.config.overrides import parse_override
from dormouse.config.problems import shown, unknown_key
from dormouse.config.schema import SECTIONS, section_of
from dormouse.errors import ConfigError

Current = Mapping[str, Mapping[str, object]]


@dataclass
class Layer:
    """Settings of one origin, and what is wrong with them."""

    settings: dict[tuple[str, str], tuple[object, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, place: str, value: object, origin: str, *, section: str | None, key: str, current: Current) -> None:
        """Take one setting, or note why not; `section` None means that none was named."""
        home = section_of(key) if section is None else section
        if home is None or key not in SECTIONS[home].model_fields:
            line = unknown_key(place, value, key=key, section=section, current=current)
            self.problems.append(f"{line} [{origin}]")
        elif (home, key) in self.settings and self.settings[home, key][0] != value:
            first = shown(self.settings[home, key][0])
            self.problems.append(
                f"{home}.{key} = {shown(value)}: given twice, first as {first}; one of the two would have "
                f"been dropped. Keep one. [{origin}]"
            )
        else:
            self.settings[home, key] = (value, origin)


def toml_layer(text: str, origin: str, current: Current, *, lines: bool = True) -> Layer:
    """Read a settings file; `lines` adds line numbers to the origin of each value."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(syntax_problem(text, origin, str(error))) from None
    where = key_lines(text) if lines else {}
    layer = Layer()
    for name, table in tables.items():
        if table == {} and name not in SECTIONS:
            layer.problems.append(
                f"[{name}] = {{}}: no such section; it would have had no effect. Sections: "
                f"{', '.join(SECTIONS)}; model keys also stand at the top level. [{origin}]"
            )
    for section, key, value in flat_settings(tables):
        line = where.get((section, key))
        place = f"{section}.{key}"
        at = origin if line is None else f"{origin}, line {line}"
        if section not in SECTIONS:
            layer.problems.append(f"{unknown_key(place, value, key=key, section=section, current=current)} [{at}]")
        elif (section, key) in layer.settings:
            layer.problems.append(f"{place}: given twice, at the top level and in [model]. Keep one. [{at}]")
        else:
            layer.put(place, value, at, section=section, key=key, current=current)
    return layer


def flat_settings(tables: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """(section, key, value) of every setting; top-level values belong to the model."""
    for name, value in tables.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                yield name, key, inner
        else:
            yield "model", name, value


def key_lines(text: str) -> dict[tuple[str, str], int]:
    """Line number of every `key =` by (section, key), counted from 1."""
    found: dict[tuple[str, str], int] = {}
    section = "model"
    for number, line in enumerate(text.splitlines(), start=1):
        if table := re.match(r"\s*\[\s*([\w\-]+)\s*\]", line):
            section = table[1]
        elif setting := re.match(r"\s*(?:(\w+)\.)?[\"']?([\w\-]+)[\"']?\s*=", line):
            found.setdefault((setting[1] or section, setting[2]), number)
    return found


def syntax_problem(text: str, origin: str, message: str) -> str:
    """One line about text that is not TOML; a key given twice is named."""
    at = re.search(r"\(at line (\d+)", message)
    line = int(at[1]) if at else len(text.splitlines())
    content = text.splitlines()[line - 1].strip() if 0 < line <= len(text.splitlines()) else ""
    if "overwrite" in message or "twice" in message:
        key = content.partition("=")[0].strip()
        return f"{origin}, line {line}: {key} is given twice; one of the two would have been dropped. Keep one."
    reason = message.partition(" (at")[0]
    return (
        f"{origin}, line {line}: not valid TOML ({reason}): {content!r}; nothing of the file would have been "
        "read. Correct the line."
    )


def override_layer(texts: Sequence[str], current: Current) -> Layer:
    """Read `--set` texts; the same key with the same value twice is harmless, with two values refused."""
    layer = Layer()
    for text in texts:
        try:
            place, value = parse_override(text)
        except ConfigError as error:
            layer.problems.append(str(error))
            continue
        head, dot, tail = place.partition(".")
        named = bool(dot) and head in SECTIONS
        section, key = (head, tail) if named else (None, place)
        layer.put(place, value, "--set", section=section, key=key, current=current)
    return layer


def flag_layer(flags: Mapping[str, object], current: Current) -> Layer:
    """Read explicit flags (None = not given); keys may name their section."""
    layer = Layer()
    for place, value in flags.items():
        if value is None:
            continue
        head, dot, tail = place.partition(".")
        section, key = (head, tail) if dot else (None, place)
        value = str(value) if isinstance(value, PurePath) else value
        layer.put(place, value, "explicit flag", section=section, key=key, current=current)
    return layer
