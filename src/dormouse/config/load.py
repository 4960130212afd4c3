"""From a preset name to a finished configuration.

Settings come in layers, each beating the one before: defaults of the schema, the preset, a file, `--set`,
explicit flags. The layers are merged as plain tables and then validated as a whole (a copy with changed
fields would skip the rules). A run's length is one choice: a layer that gives `steps` replaces `minutes` from
below, and the other way round. All problems of all layers are reported together, each with the place its
value came from.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from dormouse.config.layers import Layer, flag_layer, override_layer, toml_layer
from dormouse.config.problems import nearest
from dormouse.config.schema import SECTIONS, ModelConfig, RunConfig
from dormouse.config.section import Section
from dormouse.errors import ConfigError

Tables = dict[str, dict[str, object]]
_ONE_CHOICE = {("train", "steps"): "minutes", ("train", "minutes"): "steps"}


@dataclass
class Merged:
    """Tables by section, where each value came from, and what each would have been without its layer."""

    values: Tables = field(default_factory=lambda: {name: {} for name in SECTIONS})
    origins: dict[str, str] = field(default_factory=dict)
    instead: Tables = field(default_factory=lambda: {name: dict(cls.defaults()) for name, cls in SECTIONS.items()})
    problems: list[str] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        """Put `layer` on top; its problems are collected, not raised."""
        self.problems += layer.problems
        for (section, key), (value, origin) in layer.settings.items():
            table, other = self.values[section], _ONE_CHOICE.get((section, key))
            if other is not None and (section, other) not in layer.settings:
                table.pop(other, None)
            self.instead[section][key] = table.get(key, self.instead[section][key])
            table[key] = value
            self.origins[f"{section}.{key}"] = origin

    def current(self) -> Tables:
        """The value of every key as the layers so far have it."""
        return {name: dict(cls.defaults()) | self.values[name] for name, cls in SECTIONS.items()}

    def read(self, name: str, cls: type[Section]) -> Section | None:
        """Validate one section; its problems are collected, and None is returned for them."""
        try:
            return cls.model_validate(self.values[name], context={"instead": self.instead[name]})
        except ConfigError as error:
            self.problems += [self.located(line) for line in str(error).splitlines()]
            return None

    def located(self, line: str) -> str:
        """Append to a problem where the values that it names came from."""
        named = dict.fromkeys(re.findall(r"\b(?:model|train|data)\.\w+", line))
        places = [f"{key}: {self.origins[key]}" for key in named if key in self.origins]
        return f"{line} [{'; '.join(places)}]" if places else line

    def refuse(self) -> None:
        """Raise `ConfigError` if any problem was collected."""
        if self.problems:
            raise ConfigError("\n".join(dict.fromkeys(self.problems)))


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    files = resources.files("dormouse.config") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in files.iterdir() if file.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The preset's TOML text; an unknown name is refused with the nearest one."""
    if name not in preset_names():
        guess = nearest(name, [known.replace("-", "_") for known in preset_names()])
        hint = "" if guess is None else f" Nearest: {next(p for p in preset_names() if p.replace('-', '_') == guess)}."
        raise ConfigError(
            f"preset = {name}: no such preset; nothing would have run in its place.{hint} "
            f"Presets: {', '.join(preset_names())}. A file of settings is given with --config."
        )
    return (resources.files("dormouse.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def merge_layers(
    preset: str,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> Merged:
    """All layers on top of one another, problems collected; see `load_run_config` for the arguments."""
    merged = Merged()
    merged.add(toml_layer(preset_text(preset), f"preset {preset}", merged.current(), lines=False))
    if file is not None:
        merged.add(toml_layer(read_file(file), str(file), merged.current()))
    merged.add(override_layer(overrides, merged.current()))
    merged.add(flag_layer(flags or {}, merged.current()))
    return merged


def read_file(path: Path) -> str:
    """Text of a settings file; unreadable or not UTF-8 is refused."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text at byte {error.start}"
    raise ConfigError(
        f"config = {path}: cannot be read ({reason}); the preset alone would have run. "
        "Give a TOML file, or leave --config out."
    )


@dataclass(frozen=True)
class Resolved:
    """An effective configuration, and the layer that each changed key (`section.key`) came from."""

    config: RunConfig
    origins: Mapping[str, str]


def resolve(
    preset: str,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> Resolved:
    """`load_run_config` with the origin of every value that is not the schema's default."""
    merged = merge_layers(preset, file, overrides, flags)
    sections = {name: merged.read(name, cls) for name, cls in SECTIONS.items()}
    merged.refuse()
    try:
        config = RunConfig.model_validate(sections)
    except ConfigError as error:
        raise ConfigError("\n".join(merged.located(line) for line in str(error).splitlines())) from None
    used = {f"{name}.{key}" for name, table in merged.values.items() for key in table}
    return Resolved(config, {key: origin for key, origin in merged.origins.items() if key in used})


def load_run_config(
    preset: str,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> RunConfig:
    """The effective configuration of a run: defaults < preset < `file` < `overrides` < `flags`.

    `overrides` are texts `key=value` or `section.key=value`; `flags` maps keys to values (None: not given).
    Raises `ConfigError` with one line per problem.
    """
    return resolve(preset, file, overrides, flags).config


def load_preset(name: str, overrides: Sequence[str] = ()) -> ModelConfig:
    """The model of a preset with `overrides` (model keys only); raises `ConfigError`."""
    merged = merge_layers(name, overrides=overrides)
    merged.problems += [
        f"{key} = {merged.values[key.split('.')[0]][key.split('.')[1]]}: not a key of the model; a model "
        "without it would have been returned. Use load_run_config for train and data keys."
        for key, origin in merged.origins.items()
        if origin == "--set" and not key.startswith("model.")
    ]
    model = merged.read("model", ModelConfig)
    merged.refuse()
    assert isinstance(model, ModelConfig)
    return model
