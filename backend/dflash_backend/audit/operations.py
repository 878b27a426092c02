"""Arithmetic and comparison for the evaluator: bounded, so that no source can ask for a huge value."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from dflash_backend.audit.values import (
    MISSING,
    Class,
    Config,
    Function,
    Instance,
    Made,
    Method,
    RaisedError,
    Symbol,
    Unknown,
)

PLAIN = (int, float, str, bool, bytes, type(None), tuple, list, dict, set, range)
SCALAR = (int, float, str, bool, bytes, type(None))
MAX_ITEMS = 20_000
"""Of a container or characters of a text that the evaluator makes."""
MAX_BITS = 512
MAX_COMPARED = 2_000

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def is_true(value: Any) -> bool:
    """True when the value is certainly true."""
    if isinstance(value, Instance | Made | Function | Class | Method | Config):
        return True
    return isinstance(value, PLAIN) and bool(value)


def is_false(value: Any) -> bool:
    """True when the value is certainly false."""
    return isinstance(value, PLAIN) and not value


def size(value: Any) -> int:
    """Items of a container, characters of a text; 1 for anything else."""
    return len(value) if isinstance(value, str | bytes | tuple | list | dict | set) else 1


def scalars(values: Any) -> bool:
    """True for a container of numbers and short texts only: comparing and hashing it is cheap."""
    return isinstance(values, list | tuple | set | range | dict | str) and all(
        isinstance(item, SCALAR) for item in values
    )


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """The result of an operator; Unknown when it is not known or too large. Raises RaisedError."""
    function = _BINARY.get(type(op))
    if function is None or not (isinstance(left, PLAIN) and isinstance(right, PLAIN)):
        return Unknown("arithmetic")
    if isinstance(op, ast.Mod) and isinstance(left, str | bytes):
        return Unknown("formatted text")
    if isinstance(op, ast.Pow) and not _small_power(left, right):
        return Unknown("a large power")
    if isinstance(op, ast.Mult) and _repeats(left, right) > MAX_ITEMS:
        return Unknown("a large product")
    if isinstance(op, ast.Add | ast.BitOr) and size(left) + size(right) > MAX_ITEMS:
        return Unknown("a large sum")
    if isinstance(op, ast.BitOr | ast.BitAnd | ast.Sub) and not _flat_sets(left, right):
        return Unknown("sets of something")
    try:
        result = function(left, right)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise RaisedError(type(error).__name__, str(error)[:200]) from None
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        return Unknown("a large number")
    return Unknown("a complex number") if isinstance(result, complex) else result


def _small_power(left: Any, right: Any) -> bool:
    return not isinstance(right, int | float) or abs(right) <= 64


def _repeats(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple):
            return len(sequence) * max(0, count) if isinstance(count, int) else 0
    return 0


def _flat_sets(left: Any, right: Any) -> bool:
    return all(scalars(value) for value in (left, right) if isinstance(value, set | dict))


def compare(op: ast.cmpop, left: Any, right: Any) -> Any:
    """True, False or Unknown. Raises RaisedError."""
    if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        equal = same(left, right)
        if equal is None:
            return Unknown("comparison")
        return equal if isinstance(op, ast.Eq | ast.Is) else not equal
    if isinstance(op, ast.In | ast.NotIn):
        found = _contains(left, right)
        if found is None:
            return Unknown("membership")
        return found if isinstance(op, ast.In) else not found
    cheap = all(isinstance(value, SCALAR) or scalars(value) for value in (left, right))
    if isinstance(left, PLAIN) and isinstance(right, PLAIN) and cheap:
        try:
            return _ORDER[type(op)](left, right)
        except TypeError as error:
            raise RaisedError("TypeError", str(error)[:200]) from None
    return Unknown("comparison")


def _contains(left: Any, right: Any) -> bool | None:
    if isinstance(right, str):
        if isinstance(left, PLAIN) and not isinstance(left, str):
            raise RaisedError("TypeError", f"{type(left).__name__} in a text")
        return left in right if isinstance(left, str) else None
    if isinstance(right, int | float | bytes | None):
        raise RaisedError("TypeError", f"{type(right).__name__} is no container")
    if not isinstance(right, list | tuple | dict | set | range):
        return None
    if isinstance(right, dict | set) and isinstance(left, list | dict | set):
        raise RaisedError("TypeError", f"unhashable type: {type(left).__name__}")
    answers = [same(left, item) for item in right]
    return True if True in answers else (None if None in answers else False)


def same(left: Any, right: Any) -> bool | None:
    """Whether two values are equal; None when that cannot be known."""
    return _same(left, right, [MAX_COMPARED])


def _same(left: Any, right: Any, left_over: list[int]) -> bool | None:
    left_over[0] -= 1
    if left_over[0] < 0 or isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    if isinstance(left, Symbol) and isinstance(right, Symbol):
        if left.dotted == right.dotted:
            return True
        # Members of one enumeration differ; other names may mean the same thing.
        return False if left.parent == right.parent and left.parent.rsplit(".", 1)[-1][:1].isupper() else None
    if isinstance(left, Symbol | Made) or isinstance(right, Symbol | Made):
        if left is right:
            return True
        made, other = (left, right) if isinstance(left, Symbol | Made) else (right, left)
        if isinstance(made, Symbol) and made.member and (other is None or isinstance(other, int | str)):
            # A member of an enumeration made of the sources is no plain value.
            return False
        return False if other is None and isinstance(made, Made) else None
    identities = Instance | Class | Function | Config | Method
    if isinstance(left, identities) or isinstance(right, identities):
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if type(left) is not type(right) or len(left) != len(right):
            return False
        answers = [_same(a, b, left_over) for a, b in zip(left, right, strict=True)]
        return False if False in answers else (None if None in answers else True)
    if isinstance(left, (*SCALAR, range)) and isinstance(right, (*SCALAR, range)):
        return bool(left == right)
    if isinstance(left, dict | set) and isinstance(right, dict | set):
        return None if left is not right else True
    return False if isinstance(left, PLAIN) and isinstance(right, PLAIN) else None


def subscript(owner: Any, key: Any) -> Any:
    """``owner[key]``; Unknown when it cannot be known. Raises RaisedError."""
    if isinstance(owner, dict) and isinstance(key, list | dict | set):
        raise RaisedError("TypeError", f"unhashable type: {type(key).__name__}")
    if isinstance(owner, dict) and is_key(key):
        if key in owner:
            return owner[key]
        raise RaisedError("KeyError", str(key)[:100])
    if isinstance(owner, list | tuple | str | range) and isinstance(key, int):
        try:
            return owner[key]
        except IndexError as error:
            raise RaisedError("IndexError", str(error)) from None
    if isinstance(owner, (*SCALAR, list, tuple, range, set)) and isinstance(key, PLAIN):
        raise RaisedError("TypeError", f"{type(owner).__name__} cannot be indexed so")
    return Unknown("item")


def is_key(value: Any) -> bool:
    """True for what the evaluator takes as a dictionary's key or a member of a set."""
    if isinstance(value, tuple):
        return len(value) <= 16 and all(isinstance(item, SCALAR) for item in value)
    return isinstance(value, (*SCALAR, Symbol))


def text_of(value: Any) -> str:
    """A value as text in a message or an f-string; ``…`` where it is not known or not short."""
    if isinstance(value, SCALAR):
        return str(value)[:500]
    if scalars(value) and size(value) <= 64 and value is not MISSING:
        return str(value)[:500]
    return "…"
