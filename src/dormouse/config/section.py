"""The base of every configuration section: frozen, strict, and refusing in sentences.

A section is a pydantic model that accepts no unknown key and converts nothing silently: `true` is not the
number 1 and "4" is not 4. After its fields are read, the section's rules (functions named after what they
demand) look at all fields together. Whatever fails - several fields at once, or several rules - leaves as one
`ConfigError` with a line per problem; pydantic's own exception never reaches a user.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dormouse.config.problems import field_problem, unknown_key
from dormouse.errors import ConfigError

Rule = Callable[[Any], str | None]


class Section(BaseModel):
    """One table of the configuration; subclasses set `section` (its name) and `rules` (its cross-field
    checks)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    section: ClassVar[str] = ""
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def refuse_in_sentences(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Read the fields, then apply the rules; raises `ConfigError` listing every problem, one a line.

        The validation context may hold `instead`: the values that would run without this setting.
        """
        if isinstance(data, Mapping):
            data = {key: None if value == "none" and cls.may_be_none(key) else value for key, value in data.items()}
        try:
            config = handler(data)
        except ValidationError as error:
            current = cls.defaults() | (info.context or {}).get("instead", {})
            raise ConfigError("\n".join(cls._sentences(error, data, current))) from None
        broken = [message for rule in cls.rules if (message := rule(config)) is not None]
        if broken:
            raise ConfigError("\n".join(broken))
        return config

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """The default of every key (None where a key has none)."""
        return {
            key: None if field.is_required() else field.get_default(call_default_factory=True)
            for key, field in cls.model_fields.items()
        }

    @classmethod
    def may_be_none(cls, key: str) -> bool:
        """Whether `none` (a word, since TOML has no null) is a value of `key`."""
        return key in cls.model_fields and cls.model_fields[key].default is None

    @classmethod
    def _sentences(cls, error: ValidationError, data: Any, current: Mapping[str, object]) -> list[str]:
        lines = []
        for key, found in groupby(error.errors(), key=lambda item: str(item["loc"][0]) if item["loc"] else ""):
            errors: list[Mapping[str, Any]] = [dict(item) for item in found]
            value = data.get(key) if isinstance(data, Mapping) else data
            if errors[0]["type"] == "extra_forbidden":
                place, known = f"{cls.section}.{key}", {cls.section: current}
                lines.append(unknown_key(place, value, key=key, section=cls.section, current=known))
            else:
                default = current.get(key)
                lines.append(field_problem(cls.section, key, value, errors=errors, default=default))
        return lines
