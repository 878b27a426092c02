"""Built-in functions and attributes for the evaluator: only what is harmless, cheap and exactly known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dflash_backend.audit.operations import (
    MAX_ITEMS,
    PLAIN,
    SCALAR,
    is_false,
    is_key,
    is_true,
    scalars,
    size,
    text_of,
)
from dflash_backend.audit.values import (
    MISSING,
    Class,
    Config,
    Function,
    Instance,
    Made,
    Method,
    RaisedError,
    Super,
    Symbol,
    Unknown,
)

if TYPE_CHECKING:
    from dflash_backend.audit.evaluator import Evaluator

MAX_RANGE = 4096


def attribute_of(evaluator: Evaluator, owner: Any, name: str) -> Any:
    """An attribute, Unknown when it cannot be known, MISSING when there certainly is none."""
    match owner:
        case Config():
            return _config_attribute(owner, name)
        case Instance():
            return _instance_attribute(evaluator, owner, name)
        case Class():
            return _class_attribute(owner, name)
        case Made():
            return owner.attributes.get(name, Unknown(f".{name} of {owner.symbol.last}"))
        case Symbol():
            return Symbol(f"{owner.dotted}.{name}")
        case Super():
            return _super_attribute(owner, name)
        case str() | list() | dict() | tuple() | set():
            return _plain_method(owner, name)
        case int() | float() | None:
            return MISSING if not hasattr(owner, name) else Unknown(f".{name}")
        case _:
            return Unknown(f".{name}")


def _config_attribute(config: Config, name: str) -> Any:
    if name == "get_text_config":
        text = config.values.get("text_config")
        return lambda evaluator, *a, **k: config if text is None else text
    if name in config.values:
        return config.values[name]
    if (
        name in config.unknown
        or name.startswith("_")
        or name in ("to_dict", "update", "get", "to_json_string")
    ):
        return Unknown(f"config.{name}")
    return MISSING


def _class_attribute(owner: Class, name: str) -> Any:
    found = owner.find(name)
    if isinstance(found, Function) and found.kind == "classmethod":
        return Method(found, owner)
    if name == "__name__":
        return owner.name
    return found if found is not MISSING or owner.closed else Unknown(f".{name}")


def _instance_attribute(evaluator: Evaluator, owner: Instance, name: str) -> Any:
    if any("__getattribute__" in one.attributes for one in owner.cls.lineage()):
        return Unknown(f".{name}")
    found = owner.cls.find(name)
    if isinstance(found, Function) and found.kind == "property":
        return evaluator.call(Method(found, owner), (), {})
    if name in owner.attributes:
        return owner.attributes[name]
    if name == "__class__":
        return owner.cls
    if isinstance(found, Function):
        if found.kind == "staticmethod":
            return found
        return Method(found, owner.cls if found.kind == "classmethod" else owner)
    if found is not MISSING:
        return found
    return MISSING if owner.cls.closed and not owner.open else Unknown(f".{name}")


def _super_attribute(owner: Super, name: str) -> Any:
    receiver = owner.receiver
    family = receiver.cls if isinstance(receiver, Instance) else receiver
    if isinstance(family, Class) and owner.owner in family.lineage():
        lineage = family.lineage()
        for base in lineage[lineage.index(owner.owner) + 1 :]:
            if name in base.attributes:
                found = base.attributes[name]
                return Method(found, receiver) if isinstance(found, Function) else found
        if family.closed:
            return lambda evaluator, *a, **k: None
    if isinstance(receiver, Instance):
        # A constructor outside the sources may set anything.
        receiver.open = True
    return Unknown(f"super().{name}")


_METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "startswith", "endswith", "split", "removeprefix", "removesuffix"),
    list: ("append", "extend", "index", "count", "insert", "pop", "copy"),
    tuple: ("index", "count"),
    dict: ("get", "keys", "values", "items", "setdefault", "pop", "update", "copy"),
    set: ("add", "intersection", "issubset", "issuperset", "union", "isdisjoint", "copy"),
}  # fmt: skip
_TAKES_ANYTHING = frozenset({"append", "insert"})


def _plain_method(owner: Any, name: str) -> Any:
    kind = next(base for base in _METHODS if isinstance(owner, base))
    if name not in _METHODS[kind]:
        return MISSING if not hasattr(owner, name) else Unknown(f".{name}")

    def method(evaluator: Evaluator, *positional: Any, **named: Any) -> Any:
        if isinstance(owner, dict) and MISSING in owner:
            return Unknown(f".{name}()")
        if not _arguments_known(owner, name, positional, named):
            _taint(owner, name)
            return Unknown(f".{name}()")
        if name in ("extend", "update", "append", "insert", "add", "setdefault", "union"):
            grown = size(owner) + sum(size(value) for value in positional)
            if grown > MAX_ITEMS:
                raise RaisedError("MemoryError", "a container grows too large")
        try:
            result = getattr(owner, name)(*positional, **named)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RaisedError(type(error).__name__, str(error)[:200]) from None
        return list(result) if name in ("keys", "values", "items") else result

    return method


def _arguments_known(owner: Any, name: str, positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
    if named:
        return False
    if name in _TAKES_ANYTHING or not positional:
        return True
    if isinstance(owner, dict) and name in ("get", "setdefault", "pop"):
        return is_key(positional[0])
    if isinstance(owner, dict):
        return all(isinstance(value, dict) and MISSING not in value for value in positional)
    if isinstance(owner, set):
        return scalars(owner) and all(is_key(v) if name == "add" else scalars(v) for v in positional)
    if isinstance(owner, list) and name == "extend":
        return isinstance(positional[0], list | tuple | set | range | dict)
    if isinstance(owner, list | tuple) and name in ("index", "count"):
        return scalars(owner) and isinstance(positional[0], SCALAR)
    return all(
        isinstance(value, SCALAR) or (isinstance(value, tuple) and scalars(value)) for value in positional
    )


def _taint(owner: Any, name: str) -> None:
    """A container that was changed in an unknown way keeps no known content."""
    if isinstance(owner, dict) and name in ("update", "setdefault", "pop"):
        owner[MISSING] = Unknown(name)
    elif isinstance(owner, list) and name in ("extend", "pop", "insert"):
        owner[:] = [Unknown(name)] * (len(owner) or 1)


def _getattr(evaluator: Evaluator, owner: Any, name: Any, default: Any = MISSING) -> Any:
    return evaluator.attribute(owner, name, default) if isinstance(name, str) else Unknown("getattr")


def _hasattr(evaluator: Evaluator, owner: Any, name: Any) -> Any:
    if not isinstance(name, str):
        return Unknown("hasattr")
    if isinstance(owner, Unknown | Symbol):
        return Unknown("hasattr")
    if isinstance(owner, Instance | Made) and name in owner.attributes:
        return True
    if isinstance(owner, Config) and name in owner.unknown:
        return True
    found = attribute_of(evaluator, owner, name)
    return Unknown("hasattr") if isinstance(found, Unknown) else found is not MISSING


def _setattr(evaluator: Evaluator, owner: Any, name: Any, value: Any) -> None:
    if isinstance(name, str):
        evaluator.set_attribute(owner, name, value)
    elif isinstance(owner, Instance):
        owner.open = True


def _isinstance(evaluator: Evaluator, value: Any, kinds: Any) -> Any:
    if isinstance(value, Unknown | Symbol):
        return Unknown("isinstance")
    answers = [_is_a(value, kind) for kind in (kinds if isinstance(kinds, tuple | list) else (kinds,))]
    if True in answers:
        return True
    return Unknown("isinstance") if None in answers else False


_ABSTRACT: dict[str, tuple[type, ...]] = {
    "Sequence": (list, tuple, str, range),
    "Mapping": (dict,),
    "Iterable": (list, tuple, str, dict, set, range),
    "Number": (int, float),
    "Real": (int, float),
    "Integral": (int,),
}
_CONCRETE: dict[str, type] = {
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
        if not isinstance(value, Instance):
            return False
        return True if kind in value.cls.lineage() else (False if value.cls.closed else None)
    name = kind.last if isinstance(kind, Symbol) else getattr(kind, "__dflash_name__", None)
    plain = isinstance(value, PLAIN)
    if name in _CONCRETE:
        return isinstance(value, _CONCRETE[name])
    if name in _ABSTRACT:
        return isinstance(value, _ABSTRACT[name])
    if isinstance(value, Made) and isinstance(kind, Symbol):
        return True if value.symbol.last == kind.last else None
    if plain and isinstance(kind, Symbol) and kind.dotted.startswith("torch."):
        return False
    return None


def _convert(name: str, kind: Callable[..., Any], *, flat: bool = False) -> Callable[..., Any]:
    """A built-in for known values; with ``flat`` for numbers, texts and containers of those only."""

    def convert(evaluator: Evaluator, *values: Any) -> Any:
        if any(
            not isinstance(value, PLAIN) or (isinstance(value, dict) and MISSING in value) for value in values
        ):
            return Unknown(f"{name}(…)")
        if flat and not all(isinstance(value, SCALAR) or scalars(value) for value in values):
            return Unknown(f"{name}(…)")
        try:
            return kind(*values)
        except (TypeError, ValueError, OverflowError) as error:
            raise RaisedError(type(error).__name__, str(error)[:200]) from None

    convert.__dflash_name__ = name  # type: ignore[attr-defined]
    return convert


def _range(*bounds: Any) -> range:
    made = range(*bounds)
    if len(made) > MAX_RANGE:
        raise ValueError(f"more than {MAX_RANGE} rounds")
    return made


def _truth(evaluator: Evaluator, value: Any = False) -> Any:
    return True if is_true(value) else (False if is_false(value) else Unknown("bool(…)"))


_truth.__dflash_name__ = "bool"  # type: ignore[attr-defined]


def _any_or_all(stop_at: bool) -> Callable[..., Any]:
    def decide(evaluator: Evaluator, values: Any) -> Any:
        if not isinstance(values, list | tuple | set | range):
            return Unknown("any or all")
        if any((is_true if stop_at else is_false)(value) for value in values):
            return stop_at
        sure = all((is_false if stop_at else is_true)(value) for value in values)
        return not stop_at if sure else Unknown("any or all")

    return decide


def _type(evaluator: Evaluator, value: Any) -> Any:
    return value.cls if isinstance(value, Instance) else Unknown("type(…)")


def _callable(evaluator: Evaluator, value: Any) -> Any:
    if isinstance(value, Unknown | Symbol | Made | Instance):
        return Unknown("callable")
    return callable(value) or isinstance(value, Function | Method | Class)


def _text(evaluator: Evaluator, value: Any = "") -> Any:
    text = text_of(value)
    return Unknown("str(…)") if text == "…" else text


_text.__dflash_name__ = "str"  # type: ignore[attr-defined]


def _nothing(evaluator: Evaluator, *positional: Any, **named: Any) -> None:
    """print and the like."""


def _dict(evaluator: Evaluator, *values: Any, **named: Any) -> Any:
    if values and not (len(values) == 1 and isinstance(values[0], dict)):
        return Unknown("dict(…)")
    return {**(values[0] if values else {}), **named}


_dict.__dflash_name__ = "dict"  # type: ignore[attr-defined]


def _enumerate(values: Any, start: int = 0) -> list[Any]:
    return list(enumerate(values, start))


def _zip(*values: Any) -> list[Any]:
    return list(zip(*values, strict=False))


BUILTINS: dict[str, Any] = {
    "int": _convert("int", int, flat=True),
    "float": _convert("float", float, flat=True),
    "str": _text,
    "repr": _text,
    "bool": _truth,
    "len": _convert("len", len),
    "abs": _convert("abs", abs, flat=True),
    "round": _convert("round", round, flat=True),
    "max": _convert("max", max, flat=True),
    "min": _convert("min", min, flat=True),
    "sum": _convert("sum", sum, flat=True),
    "any": _any_or_all(True),
    "all": _any_or_all(False),
    "range": _convert("range", _range, flat=True),
    "list": _convert("list", list),
    "tuple": _convert("tuple", tuple),
    "dict": _dict,
    "set": _convert("set", set, flat=True),
    "frozenset": _convert("set", set, flat=True),
    "sorted": _convert("sorted", sorted, flat=True),
    "reversed": _convert("reversed", lambda values: list(reversed(values))),
    "enumerate": _convert("enumerate", _enumerate),
    "zip": _convert("zip", _zip),
    "getattr": _getattr,
    "hasattr": _hasattr,
    "setattr": _setattr,
    "isinstance": _isinstance,
    "type": _type,
    "callable": _callable,
    "print": _nothing,
    "True": True,
    "False": False,
    "None": None,
}
