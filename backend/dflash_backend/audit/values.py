"""Values of the symbolic evaluator: what is known exactly, what is only named, what is not known."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Unknown:
    """A value that cannot be known from the source; whatever is made from it is unknown as well."""

    why: str = ""


@dataclass(frozen=True)
class Symbol:
    """Something outside the sources at hand, known by its dotted name: ``torch.nn.Linear``.

    ``member``: a member of an enumeration of the sources, equal to itself only.
    """

    dotted: str
    member: bool = False

    @property
    def last(self) -> str:
        """The name behind the last dot."""
        return self.dotted.rsplit(".", 1)[-1]

    @property
    def parent(self) -> str:
        """What stands before the last dot."""
        return self.dotted.rsplit(".", 1)[0]


@dataclass(eq=False)
class Function:
    """A function of the sources, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    name: str
    owner: Class | None = None
    kind: str = "function"
    """``function``, ``staticmethod``, ``classmethod`` or ``property``."""


@dataclass(eq=False)
class Class:
    """A class of the sources. ``bases`` are Class, Symbol or Unknown."""

    name: str
    bases: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Annotated names of the body with their defaults (``MISSING`` without), for dataclasses."""
    is_dataclass: bool = False

    def lineage(self) -> list[Class]:
        """The class and its known bases, nearest first."""
        found: list[Class] = [self]
        for base in self.bases:
            if isinstance(base, Class):
                found += [one for one in base.lineage() if one not in found]
        return found

    def find(self, name: str) -> Any:
        """An attribute of the class or a base; ``MISSING`` when there is none."""
        for one in self.lineage():
            if name in one.attributes:
                return one.attributes[name]
        return MISSING

    @property
    def closed(self) -> bool:
        """True when every base is in the sources, so that a missing attribute is really missing."""
        if any(hook in self.attributes for hook in _HOOKS):
            return False
        return all(
            (isinstance(base, Class) and base.closed) or (isinstance(base, Symbol) and base.last in _PLAIN)
            for base in self.bases
        )

    @property
    def is_enum(self) -> bool:
        """True for an enumeration: its members are equal to themselves only."""
        return any(
            (isinstance(base, Symbol) and base.last in _ENUMS) or (isinstance(base, Class) and base.is_enum)
            for base in self.bases
        )


_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})
_PLAIN = _ENUMS | {"object", "Module", "ABC", "NamedTuple", "Generic", "Protocol"}
_HOOKS = ("__getattr__", "__getattribute__", "__setattr__", "__new__")
"""With one of these a class's objects are not what they seem."""


@dataclass(eq=False)
class Instance:
    """An object of a class of the sources. ``open``: something unknown may have set further attributes."""

    cls: Class
    attributes: dict[str, Any] = field(default_factory=dict)
    open: bool = False


@dataclass(frozen=True, eq=False)
class Super:
    """``super()``: what the bases in the sources have; elsewhere calls do nothing."""

    owner: Any
    receiver: Any


@dataclass(eq=False)
class Made:
    """What a call of something outside the sources gave: its arguments, and what was set on it since."""

    symbol: Symbol
    positional: tuple[Any, ...]
    named: dict[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Method:
    """A function bound to an object or a class."""

    function: Function
    receiver: Any


@dataclass(frozen=True, eq=False)
class Config:
    """The drafter's configuration as transformers hands it to SGLang: attributes, no dictionary.

    ``unknown`` names are attributes that exist with a value that is not known; all others are missing.
    """

    values: dict[str, Any]
    unknown: frozenset[str] = frozenset()


class _Missing:
    """Marks an absent value, where None is a value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class Scope:
    """Names of a module, class body or function, and of what is around it."""

    def __init__(self, module: str, parent: Scope | None = None) -> None:
        self.module = module
        self.parent = parent
        self.names: dict[str, Any] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()

    def root(self) -> Scope:
        """The module's own scope."""
        return self if self.parent is None else self.parent.root()

    def get(self, name: str) -> Any:
        """The value of a name, from the inside out; ``MISSING`` when nothing has it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return MISSING

    def set(self, name: str, value: Any) -> None:
        """Binds a name here, in the module after ``global``, in a function around after ``nonlocal``."""
        target: Scope = self.root() if name in self.globals else self
        if name in self.nonlocals:
            around = self.parent
            while around is not None and name not in around.names:
                around = around.parent
            target = around or self
        target.names[name] = value


class RaisedError(Exception):
    """The evaluated source raises here."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class GaveUpError(Exception):
    """The evaluator cannot go on: too many steps, or syntax that it does not do."""
