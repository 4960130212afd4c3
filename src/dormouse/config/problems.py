"""Sentences about a wrong setting: which field, which value, what would have run instead, the way out.

`field_problem` words one of pydantic's findings (wrong type, out of range, not a choice, missing);
`unknown_key` words a key that no section has, a key that stands in the wrong section, and a key that the
original system has removed. Both return one line without a full report around it; the loader adds where the
value came from.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

HALTING = "learned halting was replaced by a fixed number of passes (max_iter)"
REMOVED_KEYS = {
    "ponder_prior": HALTING,
    "ponder_beta": HALTING,
    "ponder_w": HALTING,
    "halt_theta": HALTING,
    "rec_w": "there is one readout and one loss; deep_supervision weighs the losses of single passes",
    "guard_w": "the firewall against non-finite numbers is always on and has no weight",
    "keep_frac": "sparse attention is sized by msa_kb and msa_block_r",
    "msa_topk": "sparse attention is sized by msa_kb and msa_block_r",
    "msa_block": "sparse attention is sized by msa_kb and msa_block_r",
    "rope_base": "rotary embedding has a fixed base (10000), used by plain attention only",
    "dropout": "no branch has dropout",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be above {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be below {}"),
    "literal_error": ("expected", "must be {}"),
    "string_pattern_mismatch": ("pattern", "must have the form {}"),
}
_KINDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "finite_number": "must be a finite number",
}


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    hidden = ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000
    return f"\\u{ord(letter):04x}" if hidden else letter


def shown(value: object) -> str:
    """A value as the user would write it in TOML (None is written `none`)."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(_escaped(letter) for letter in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return str(value)


def complaint(error: Mapping[str, Any]) -> str:
    """What one pydantic finding says about a value, as the end of a sentence that starts with the value."""
    if error["type"] in _BOUNDS:
        name, words = _BOUNDS[error["type"]]
        return words.format(str(error["ctx"][name]).replace("'", '"'))
    return _KINDS.get(error["type"], str(error["msg"]))


def field_problem(section: str, key: str, value: object, *, errors: list[Mapping[str, Any]], default: object) -> str:
    """One line about a known key: `errors` are all findings on it, `default` would have run instead."""
    if errors[0]["type"] == "missing":
        return f"{section}.{key}: must be given, it has no default; nothing would have run. Give a {key}."
    said = " or ".join(dict.fromkeys(complaint(error) for error in errors))
    return (
        f"{section}.{key} = {shown(value)}: {said}; ignored, {key} = {shown(default)} would have run. "
        f"Correct the value, or leave {key} out for {shown(default)}."
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known key most like `word` (dots and dashes read as underscores), or None when nothing is alike."""
    plain = re.sub(r"[.\-\s]+", "_", word.strip().lower())
    keys = list(known)
    close = difflib.get_close_matches(plain, keys, n=1, cutoff=0.6)
    if close:
        return close[0]
    words = plain.split("_")
    alike = [key for key in keys if plain in key.split("_") or plain.replace("_", "") == key.replace("_", "")]
    return next(iter(alike + [key for key in keys if key in words]), None)


def unknown_key(
    place: str, value: object, *, key: str, section: str | None, current: Mapping[str, Mapping[str, object]]
) -> str:
    """One line about a key that cannot be used where it stands.

    `place` is the key as written, `section` the section it was written in (None: none named), `key` its last
    part and `current` the value that every valid key has without this setting, by section.
    """
    written = f"{place} = {shown(value)}"
    if key in REMOVED_KEYS:
        return f"{written}: the key was removed: {REMOVED_KEYS[key]}; nothing would have read it. Leave it out."
    home = next((name for name, keys in current.items() if key in keys), None)
    if home is not None:
        return (
            f"{written}: {key} belongs to section {home}, not to {section}; ignored, {home}.{key} = "
            f"{shown(current[home][key])} would have run. Write {home}.{key}."
        )
    guess = nearest(key, [name for keys in current.values() for name in keys])
    if guess is None:
        guess = nearest(place, [name for keys in current.values() for name in keys])
    if guess is None:
        return f"{written}: no such key; it would have had no effect. `dormouse config show` lists all keys."
    home = next(name for name, keys in current.items() if guess in keys)
    return (
        f"{written}: no such key; ignored, {guess} = {shown(current[home][guess])} would have run. "
        f"Nearest valid key: {guess} (section {home})."
    )
