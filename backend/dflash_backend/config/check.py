"""Checks decoded TOML against a msgspec schema and reports everything that is wrong, not just the first."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable

from msgspec import inspect as mi

from dflash_backend.config.locate import Key
from dflash_backend.core.text import sanitise

Report = Callable[[Key, str], None]
"""Called with the key and the text of each problem."""


def check(value: object, schema: type, report: Report) -> None:
    """Reports unknown keys with the nearest valid one, missing keys, wrong types and bad values."""
    _check(value, mi.type_info(schema), (), report)


def shown(value: object, limit: int = 60) -> str:
    """A value of a file in an error message: short, on one line, harmless."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return sanitise(repr(value), multiline=False, limit=limit)


def suggestion(name: str, valid: Iterable[str]) -> str:
    """``did you mean 'port'?``, or the valid names when none is near."""
    names = list(valid)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else ""


def _check(value: object, info: mi.Type, key: Key, report: Report) -> None:
    info = _plain(info)
    if isinstance(info, mi.StructType):
        _check_struct(value, info, key, report)
    elif isinstance(info, mi.DictType):
        if not isinstance(value, dict):
            report(key, _mismatch(key, value, info))
            return
        for name, item in value.items():
            _check(item, info.value_type, (*key, name), report)
    elif isinstance(info, mi.ListType | mi.VarTupleType):
        if not isinstance(value, list):
            report(key, _mismatch(key, value, info))
            return
        for index, item in enumerate(value):
            _check(item, info.item_type, (*key, index), report)
    elif not _fits(value, info):
        report(key, _mismatch(key, value, info))


def _check_struct(value: object, info: mi.StructType, key: Key, report: Report) -> None:
    if not isinstance(value, dict):
        report(key, _mismatch(key, value, info))
        return
    fields = {field.encode_name: field for field in info.fields}
    for name, item in value.items():
        if name in fields:
            _check(item, fields[name].type, (*key, name), report)
        else:
            hint = suggestion(name, fields)
            report((*key, name), f"unknown key {shown(name)}" + (f" ({hint})" if hint else ""))
    for name, field in fields.items():
        if field.required and name not in value:
            report(key, f"{_place(key)}the key '{name}' is missing")


def _plain(info: mi.Type) -> mi.Type:
    return _plain(info.type) if isinstance(info, mi.Metadata) else info


def _fits(value: object, info: mi.Type) -> bool:
    info = _plain(info)
    match info:
        case mi.AnyType():
            return True
        case mi.BoolType():
            return isinstance(value, bool)
        case mi.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(value, info)
        case mi.FloatType():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and math.isfinite(value) and _within(value, info)  # type: ignore[arg-type]
        case mi.StrType():
            return isinstance(value, str) and _text_fits(value, info)
        case mi.EnumType():
            return isinstance(value, str) and value in _members(info)
        case mi.LiteralType():
            return any(value == v and type(value) is type(v) for v in info.values)
        case mi.UnionType():
            return any(_fits(value, part) for part in info.types)
        case mi.ListType() | mi.VarTupleType():
            return isinstance(value, list) and all(_fits(item, info.item_type) for item in value)
        case mi.DictType():
            return isinstance(value, dict) and all(_fits(item, info.value_type) for item in value.values())
        case mi.StructType():
            problems: list[str] = []
            _check_struct(value, info, (), lambda _key, text: problems.append(text))
            return not problems
        case _:
            return False


def _within(value: float, info: mi.IntType | mi.FloatType) -> bool:
    return (
        (info.ge is None or value >= info.ge)
        and (info.le is None or value <= info.le)
        and (info.gt is None or value > info.gt)
        and (info.lt is None or value < info.lt)
    )


def _text_fits(value: str, info: mi.StrType) -> bool:
    return (
        (info.min_length is None or len(value) >= info.min_length)
        and (info.max_length is None or len(value) <= info.max_length)
        and (info.pattern is None or re.search(info.pattern, value) is not None)
    )


def _members(info: mi.EnumType) -> list[str]:
    return [str(member.value) for member in info.cls]


def _mismatch(key: Key, value: object, info: mi.Type) -> str:
    hint = ""
    choices = _choices(info)
    if isinstance(value, str) and choices:
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
        close = near or [c for c in choices if c.lower() == value.lower()]
        hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"{_place(key)}must be {expected(info)}, not {shown(value)}{hint}"


def _place(key: Key) -> str:
    return f"'{sanitise('.'.join(map(str, key)), multiline=False, limit=100)}' " if key else ""


def _choices(info: mi.Type) -> list[str]:
    info = _plain(info)
    if isinstance(info, mi.EnumType):
        return _members(info)
    if isinstance(info, mi.LiteralType):
        return [str(v) for v in info.values]
    if isinstance(info, mi.UnionType):
        return [choice for part in info.types for choice in _choices(part)]
    return []


def expected(info: mi.Type) -> str:
    """What a type takes, in words."""
    info = _plain(info)
    match info:
        case mi.BoolType():
            return "true or false"
        case mi.IntType() | mi.FloatType():
            noun = "a whole number" if isinstance(info, mi.IntType) else "a number"
            return noun + _range(info)
        case mi.StrType():
            return "a text in quotes" if info.min_length is None else "a text in quotes that is not empty"
        case mi.EnumType() | mi.LiteralType():
            return "one of " + ", ".join(f'"{choice}"' for choice in _choices(info))
        case mi.UnionType():
            return " or ".join(expected(part) for part in info.types if not isinstance(part, mi.NoneType))
        case mi.ListType() | mi.VarTupleType():
            return f"a list ([…]), each {expected(info.item_type)}"
        case mi.DictType() | mi.StructType():
            return "a table"
        case _:
            return "something else"


def _range(info: mi.IntType | mi.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    if info.ge is not None:
        return f" of at least {info.ge}"
    if info.gt is not None:
        return f" above {info.gt}"
    return f" of at most {info.le}" if info.le is not None else ""
