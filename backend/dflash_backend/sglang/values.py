"""Values of SGLang options: whether one fits, and how it stands on a command line."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex

from dflash_backend.core.profile import OptionValue
from dflash_backend.sglang.options import Option

_NAMES = {
    "int": "a whole number",
    "count": "a whole number (also like 64k or 4Ki)",
    "float": "a number",
    "str": "text",
    "json": "a JSON text",
}
_COUNT = re.compile(r"\d+(?:Ki|Mi|Gi|Ti)|\d+(?:\.\d+)?[kMGT]")


def value_problem(option: Option, value: OptionValue) -> str | None:
    """Why ``value`` does not fit, as the end of a sentence ("takes a whole number, not 'x'"), or None.

    False fits every option: it leaves the option out (or says ``--no-x`` where that exists).
    """
    if value is False:
        return None
    if option.kind in ("flag", "toggle"):
        return None if value is True else f"is a switch: true or false, not {value!r}"
    optional = option.kind.startswith("optional-")
    if value is True:
        return None if optional else f"takes {_NAMES[_element(option)]}, not true"
    if option.kind.startswith("list-"):
        words = _split(value)
        if words is None:
            return f"has unbalanced quotes: {value!r}"
        if not words:
            return "takes one or more values, not an empty text"
        problems = [p for p in (_scalar_problem(option, word) for word in words) if p]
        return problems[0] if problems else None
    return _scalar_problem(option, value)


def value_words(option: Option, value: OptionValue) -> list[str]:
    """The words of ``option`` on a command line; empty when it is left out."""
    if value is False:
        return [f"--no-{option.name}"] if option.kind == "toggle" else []
    if value is True:
        return [f"--{option.name}"]
    if option.kind.startswith("list-"):
        return [f"--{option.name}", *(_split(value) or [])]
    text = str(value)
    # A value with a dash in front would be read as an option.
    return [f"--{option.name}={text}"] if text.startswith("-") else [f"--{option.name}", text]


def _element(option: Option) -> str:
    return option.kind.rpartition("-")[2]


def _split(value: OptionValue) -> list[str] | None:
    if not isinstance(value, str):
        return [str(value)]
    try:
        return shlex.split(value)
    except ValueError:
        return None


def _scalar_problem(option: Option, value: OptionValue) -> str | None:
    kind = _element(option)
    if kind == "count" and _COUNT.fullmatch(str(value)):
        return None
    if kind in ("int", "count", "float"):
        number = _number(value, whole=kind != "float")
        if number is None:
            return f"takes {_NAMES[kind]}, not {value!r}"
        value = number
    elif kind == "json":
        try:
            json.loads(str(value))
        except ValueError:
            return f"takes {_NAMES[kind]}, not {value!r}"
    if option.choices is not None and value not in option.choices and str(value) not in option.choices:
        allowed = [str(choice) for choice in option.choices]
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        shown = ", ".join(allowed[:12]) + (", …" if len(allowed) > 12 else "")
        return f"cannot be {value!r}{hint}; it is one of {shown}"
    return None


def _number(value: OptionValue, *, whole: bool) -> int | float | None:
    try:
        number = int(str(value)) if whole else float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
