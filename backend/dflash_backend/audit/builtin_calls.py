"""Built-in functions and attributes for the evaluator: only what is harmless and exactly known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from dflash_backend.audit.evaluator import Evaluator

_KNOWN = (int, float, str, bool, bytes, type(None), tuple, list, dict, set, range)
MAX_RANGE = 4096


def is_true(value: Any) -> bool:
    """True when the value is certainly true."""
    if isinstance(value, Instance | Made | Function | Class | Method | Config):
        return True
    return isinstance(value, _KNOWN) and bool(value)


def is_false(value: Any) -> bool:
    """True when the value is certainly false."""
    return isinstance(value, _KNOWN) and not value


def attribute_of(evaluator: Evaluator, owner: Any, name: str) -> Any:
    """An attribute, Unknown when it cannot be known, MISSING when there certainly is none."""
    match owner:
        case Config():
            return _config_attribute(owner, name)
        case Instance():
            return _instance_attribute(evaluator, owner, name)
        case Class():
            found = owner.find(name)
            if isinstance(found, Function) and found.kind == "classmethod":
                return Method(found, owner)
            if name == "__name__":
                return owner.name
            return found if found is not MISSING or owner.closed else Unknown(f".{name}")
        case Made():
            return owner.attributes.get(name, Unknown(f".{name} of {owner.symbol.last}"))
        case Symbol():
            return Symbol(f"{owner.dotted}.{name}")
        case Unknown():
            return Unknown(f".{name}")
        case str() | list() | dict() | tuple() | set():
            return _plain_method(owner, name)
        case int() | float() | bool() | None:
            return MISSING
        case _ if hasattr(owner, "owner") and hasattr(owner, "receiver"):
            return _super_attribute(owner.owner, owner.receiver, name)
        case _:
            return Unknown(f".{name}")


def _config_attribute(config: Config, name: str) -> Any:
    if name == "get_text_config":
        text = config.values.get("text_config")
        return lambda evaluator, *a, **k: wrap(text) if isinstance(text, dict) else config
    if name in config.values:
        return wrap(config.values[name])
    return MISSING


def wrap(value: Any) -> Any:
    """A nested configuration as transformers gives it: ``text_config`` becomes an object, others stay."""
    return value


def _instance_attribute(evaluator: Evaluator, owner: Instance, name: str) -> Any:
    if name in owner.attributes:
        return owner.attributes[name]
    if name == "__class__":
        return owner.cls
    found = owner.cls.find(name)
    if isinstance(found, Function):
        if found.kind == "property":
            return evaluator.call(Method(found, owner), (), {})
        if found.kind == "staticmethod":
            return found
        return Method(found, owner.cls if found.kind == "classmethod" else owner)
    if found is not MISSING:
        return found
    return MISSING if owner.cls.closed else Unknown(f".{name}")


def _super_attribute(owner: Any, receiver: Any, name: str) -> Any:
    if isinstance(owner, Class):
        for base in owner.lineage()[1:]:
            if name in base.attributes:
                found = base.attributes[name]
                return Method(found, receiver) if isinstance(found, Function) else found
    return lambda evaluator, *a, **k: None


def _plain_method(owner: Any, name: str) -> Any:
    allowed = {
        str: ("lower", "upper", "strip", "startswith", "endswith", "split", "replace", "format", "casefold"),
        list: ("append", "extend", "index", "count"),
        tuple: ("index", "count"),
        dict: ("get", "keys", "values", "items", "setdefault", "pop"),
        set: ("add",),
    }
    kind = next(base for base in allowed if isinstance(owner, base))
    if name not in allowed[kind]:
        return MISSING if not hasattr(owner, name) else Unknown(f".{name}")

    def method(evaluator: Evaluator, *positional: Any, **named: Any) -> Any:
        known = all(isinstance(value, _KNOWN) for value in positional) or name in (
            "append",
            "add",
            "setdefault",
            "get",
        )
        if not known:
            return Unknown(f".{name}()")
        try:
            result = getattr(owner, name)(*positional, **named)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RaisedError(type(error).__name__, str(error)) from None
        return list(result) if name in ("keys", "values", "items") else result

    return method


def _getattr(evaluator: Evaluator, owner: Any, name: Any, default: Any = MISSING) -> Any:
    return evaluator.attribute(owner, name, default) if isinstance(name, str) else Unknown("getattr")


def _hasattr(evaluator: Evaluator, owner: Any, name: Any) -> Any:
    if not isinstance(name, str):
        return Unknown("hasattr")
    found = attribute_of(evaluator, owner, name)
    return Unknown("hasattr") if isinstance(found, Unknown) else found is not MISSING


def _setattr(evaluator: Evaluator, owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, Instance | Made | Class) and isinstance(name, str):
        owner.attributes[name] = value


def _isinstance(evaluator: Evaluator, value: Any, kinds: Any) -> Any:
    if isinstance(value, Unknown | Symbol):
        return Unknown("isinstance")
    answers = [_is_a(value, kind) for kind in (kinds if isinstance(kinds, tuple | list) else (kinds,))]
    if True in answers:
        return True
    return Unknown("isinstance") if None in answers else False


_ABSTRACT = {
    "Sequence": (list, tuple, str, range),
    "Mapping": (dict,),
    "Iterable": (list, tuple, str, dict, set, range),
    "Number": (int, float),
    "Real": (int, float),
    "Integral": (int,),
}
_CONCRETE = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": set,
}


def _is_a(value: Any, kind: Any) -> bool | None:
    if isinstance(kind, Class):
        return isinstance(value, Instance) and kind in value.cls.lineage()
    name = kind.last if isinstance(kind, Symbol) else getattr(kind, "__dflash_name__", None)
    if name in _CONCRETE:
        return isinstance(value, _CONCRETE[name])
    if name in _ABSTRACT:
        return isinstance(value, _ABSTRACT[name])
    if isinstance(value, Made) and isinstance(kind, Symbol):
        return True if value.symbol.last == kind.last else None
    return None


def _convert(name: str, kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def convert(evaluator: Evaluator, *values: Any) -> Any:
        if any(not isinstance(value, _KNOWN) for value in values):
            return Unknown(f"{name}(…)")
        try:
            return kind(*values)
        except (TypeError, ValueError, OverflowError) as error:
            raise RaisedError(type(error).__name__, str(error)) from None

    convert.__dflash_name__ = name  # type: ignore[attr-defined]
    return convert


def _range(*bounds: Any) -> range:
    made = range(*bounds)
    if len(made) > MAX_RANGE:
        raise ValueError(f"more than {MAX_RANGE} rounds")
    return made


def _nothing(evaluator: Evaluator, *positional: Any, **named: Any) -> None:
    """print and the like."""


BUILTINS: dict[str, Any] = {
    "int": _convert("int", int),
    "float": _convert("float", float),
    "str": _convert("str", str),
    "bool": _convert("bool", bool),
    "len": _convert("len", len),
    "abs": _convert("abs", abs),
    "max": _convert("max", max),
    "min": _convert("min", min),
    "sum": _convert("sum", sum),
    "any": _convert("any", any),
    "all": _convert("all", all),
    "range": _convert("range", _range),
    "list": _convert("list", lambda *a: list(*a)),
    "tuple": _convert("tuple", lambda *a: tuple(*a)),
    "dict": _convert("dict", lambda *a: dict(*a)),
    "set": _convert("set", lambda *a: set(*a)),
    "sorted": _convert("sorted", sorted),
    "reversed": _convert("reversed", lambda a: list(reversed(a))),
    "enumerate": _convert("enumerate", lambda a, s=0: list(enumerate(a, s))),
    "zip": _convert("zip", lambda *a: list(zip(*a, strict=False))),
    "repr": _convert("repr", repr),
    "getattr": _getattr,
    "hasattr": _hasattr,
    "setattr": _setattr,
    "isinstance": _isinstance,
    "callable": lambda evaluator, value: (
        Unknown("callable") if isinstance(value, Unknown | Symbol) else callable(value)
    ),
    "print": _nothing,
    "True": True,
    "False": False,
    "None": None,
}
