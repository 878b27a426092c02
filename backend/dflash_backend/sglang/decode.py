"""Plain values out of foreign JSON: what is not a finite number is None, what is text is clean text.

Every reader of this package goes through here, so that odd types, NaN, huge integers, escape sequences and
secrets are dealt with once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from dflash_backend.core.errors import UsageError
from dflash_backend.core.text import redact_mapping, sanitise

JsonInput = bytes | bytearray | str | Mapping[str, object] | Sequence[object]
"""Raw text of an answer, or the same already decoded."""

MAX_TEXT = 2000
"""Characters kept of one text value."""


class FormatError(UsageError):
    """The input is not what it should be: nothing could be read from it. Exit 2."""

    kind = "format"


def decode_json(data: JsonInput, what: str) -> object:
    """``data`` as decoded JSON; raises FormatError naming ``what`` when it is none."""
    if not isinstance(data, bytes | bytearray | str):
        return data
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{what} is not valid JSON: {sanitise(str(error), multiline=False, limit=200)}",
            next_step="check that the file or answer is whole and comes from the right address",
        ) from None


def as_mapping(value: object, what: str) -> Mapping[str, object]:
    """``value`` when it is a JSON object; raises FormatError otherwise."""
    if isinstance(value, Mapping):
        return value
    raise FormatError(
        f"{what} should be a JSON object, found {describe(value)}",
        next_step="check that the file or answer is the one that was meant",
    )


def describe(value: object) -> str:
    """The JSON word for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "an object" if isinstance(value, Mapping) else "a list"


def number(value: object) -> float | None:
    """A finite number as float; None for everything else (booleans, text, NaN, infinities, too large)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def integer(value: object) -> int | None:
    """A whole number of at most 2^63 in size; None for everything else. ``3.0`` counts as 3."""
    result = number(value)
    if result is None or not result.is_integer() or abs(result) > 2**63:
        return None
    return value if isinstance(value, int) else int(result)


def text(value: object, limit: int = MAX_TEXT) -> str | None:
    """Clean single-line text; None for everything else and for empty text."""
    if not isinstance(value, str):
        return None
    return sanitise(value, multiline=False, limit=limit) or None


def flag(value: object) -> bool | None:
    """A boolean; None for everything else."""
    return value if isinstance(value, bool) else None


def mapping_or_empty(value: object) -> Mapping[str, object]:
    """``value`` when it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> tuple[object, ...]:
    """The items of a JSON list; empty for everything else."""
    return tuple(value) if isinstance(value, list | tuple) else ()


def _clean(value: object) -> object:
    if isinstance(value, Mapping):
        return {sanitise(str(key), multiline=False, limit=200): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return sanitise(value, limit=MAX_TEXT)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def clean_json(value: object, what: str) -> object:
    """A copy of decoded JSON that may be shown and saved: clean text, no secrets, no NaN.

    Raises FormatError when it is nested too deeply to be walked.
    """
    try:
        return redact_mapping(_clean(value))
    except RecursionError:
        raise FormatError(
            f"{what} is nested too deeply", next_step="check that the file is the one that was meant"
        ) from None
