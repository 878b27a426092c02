"""A symbolic evaluator for plain Python: runs and imports none of it, and says what it does not know.

Reading source by patterns is fooled by dead code, by a method that nobody calls, by a value off by one. So
the constructor of the draft model is evaluated, with the drafter's real configuration, over the syntax tree
of the installed sources: numbers and texts are computed, everything outside stays a name, whatever depends on
the outside is unknown. Where a condition is unknown both ways are taken (``paths.explore``), and only what
all ways agree on counts as a fact. Steps, depth, paths and sizes are bounded: hostile sources cannot hold it
up.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_backend.audit.paths import Oracle, explore
from dflash_backend.audit.statements import ControlSignal, ReturnSignal, Statements, dotted_name
from dflash_backend.audit.values import (
    MISSING,
    Class,
    Config,
    Function,
    GaveUpError,
    Instance,
    Made,
    Method,
    RaisedError,
    Scope,
    Symbol,
    Unknown,
)

__all__ = [
    "Class",
    "Config",
    "Evaluator",
    "GaveUpError",
    "Instance",
    "Made",
    "Oracle",
    "RaisedError",
    "Symbol",
    "Unknown",
    "explore",
]

MAX_DEPTH = 40

_NVIDIA = {
    "is_cuda": True,
    "is_npu": False,
    "is_hip": False,
    "is_xpu": False,
    "is_cpu": False,
    "is_musa": False,
    "is_mps": False,
    "is_hpu": False,
}
"""What the platform predicates of SGLang answer on an NVIDIA machine."""

_SURE = frozenset(
    {*sys.stdlib_module_names, "torch", "transformers", "sglang", "triton", "numpy", "typing_extensions"}
)
"""Packages whose import works wherever SGLang runs; that of others may fail."""

_TRANSPARENT = frozenset({*sys.stdlib_module_names, "torch", "sglang", "triton", "builtins"})
"""Decorators of these packages leave a function what it is, as far as windows go."""


class Evaluator(Statements):
    """Evaluates modules given as syntax trees by dotted name. One evaluator is one path."""

    def __init__(self, sources: Mapping[str, ast.Module], oracle: Oracle | None = None) -> None:
        super().__init__()
        self._sources = sources
        self._modules: dict[str, Scope] = {}
        self._depth = 0
        self._generators: dict[int, bool] = {}
        self.oracle = oracle or Oracle()
        self.made: list[Made] = []
        """Everything that was made outside the sources, in order."""
        self.instances: list[Instance] = []
        """Every object of a class of the sources, in order."""
        self.ran: set[int] = set()
        """Functions that were run, by the identity of their syntax."""

    # Modules -------------------------------------------------------------------------------------------

    def module(self, name: str) -> Scope:
        """The names of a module after its top level was evaluated. Raises GaveUpError, RaisedError."""
        if name not in self._modules:
            if name not in self._sources:
                raise GaveUpError(f"there is no source of {name}")
            scope = Scope(name)
            self._modules[name] = scope
            self.body(self._sources[name].body, scope)
        return self._modules[name]

    def body(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        """Evaluates statements that are in no function and no loop. Raises RaisedError, GaveUpError."""
        try:
            self.block(statements, scope)
        except ReturnSignal:
            return
        except ControlSignal:
            raise RaisedError("SyntaxError", "a jump outside of a loop") from None

    def import_names(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                self._may_fail(name)
                scope.set(alias.asname or name, Symbol(name))
            return
        origin = self._origin(node, scope.module)
        known = self.module(origin) if origin in self._sources else None
        if known is None:
            self._may_fail(origin)
        for alias in node.names:
            if alias.name == "TYPE_CHECKING" and origin == "typing":
                scope.set(alias.asname or alias.name, False)
                continue
            if alias.name == "*":
                for name, value in list(known.names.items()) if known else ():
                    if not name.startswith("_"):
                        scope.set(name, value)
                continue
            found = known.get(alias.name) if known is not None else MISSING
            scope.set(
                alias.asname or alias.name,
                Symbol(f"{origin}.{alias.name}") if found is MISSING else found,
            )

    def _may_fail(self, module: str) -> None:
        # Only inside try is a failing import no failing start, so only there does it make a difference.
        root = module.split(".")[0]
        if self.trying and root and root not in _SURE and not self.oracle.decide(f"{root} can be imported"):
            raise RaisedError("ModuleNotFoundError", root)

    @staticmethod
    def _origin(node: ast.ImportFrom, module: str) -> str:
        if not node.level:
            return node.module or ""
        base = module.split(".")[: -node.level]
        return ".".join([*base, *([node.module] if node.module else [])])

    # Functions and classes -----------------------------------------------------------------------------

    def define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Any:
        made: Any = Function(node, scope, node.name)
        for decorator in reversed(node.decorator_list):
            name = dotted_name(decorator) or ""
            last = name.rsplit(".", 1)[-1]
            if last in ("staticmethod", "classmethod", "property", "cached_property"):
                if isinstance(made, Function):
                    made.kind = "property" if last.endswith("property") else last
                continue
            if last in ("setter", "deleter", "overload"):
                continue
            made = self._decorated(made, self.value(decorator, scope), _root_of(decorator, scope))
        return made

    def _decorated(self, made: Any, decorator: Any, root: str) -> Any:
        if isinstance(decorator, Function | Method | Class):
            # A decorator of the sources may replace what it decorates: it is applied.
            return self.call(decorator, (made,), {})
        return made if root in _TRANSPARENT else Unknown(f"a decorator of {root or 'something unknown'}")

    def define_class(self, node: ast.ClassDef, scope: Scope) -> Any:
        bases = tuple(self.value(base, scope) for base in node.bases)
        if any(keyword.arg == "metaclass" for keyword in node.keywords):
            bases = (*bases, Unknown("metaclass"))
        inner = Scope(scope.module, scope)
        made = Class(node.name, bases)
        made.is_dataclass = any("dataclass" in (dotted_name(d) or "") for d in node.decorator_list)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                default = MISSING if statement.value is None else self.value(statement.value, inner)
                made.fields[statement.target.id] = default
                if default is not MISSING:
                    inner.names[statement.target.id] = default
                continue
            self._statement(statement, inner)
        made.attributes = inner.names
        for value in made.attributes.values():
            if isinstance(value, Function):
                value.owner = value.owner or made
                if value.scope is inner:
                    # Methods see the module's names, not those of the class body.
                    value.scope = scope
        if made.is_enum:
            made.attributes = {
                name: value
                if isinstance(value, Function) or name.startswith("_")
                else Symbol(f"{scope.module}.{node.name}.{name}", member=True)
                for name, value in made.attributes.items()
            }
        result: Any = made
        for decorator in reversed(node.decorator_list):
            result = self._decorated(result, self.value(decorator, scope), _root_of(decorator, scope))
        return result

    def call(self, function: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls a value. What is outside the sources gives ``Made``; what is unknown stays unknown."""
        self.oracle.tick()
        match function:
            case Method():
                return self._run(function.function, (function.receiver, *positional), named)
            case Function():
                return self._run(function, positional, named)
            case Class():
                return self._instantiate(function, positional, named)
            case Symbol():
                return self._outside(function, positional, named)
            case Instance():
                forward = function.cls.find("__call__")
                if isinstance(forward, Function):
                    return self._run(forward, (function, *positional), named)
                return Unknown("call")
            case _ if callable(function):
                return self._builtin(function, positional, named)
            case _:
                return Unknown("call")

    def _builtin(self, function: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if "**" in named:
            return Unknown("call")
        try:
            return function(self, *positional, **named)
        except TypeError as error:
            raise RaisedError("TypeError", str(error)[:200]) from None

    def _outside(self, symbol: Symbol, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        name = symbol.last
        if name in _NVIDIA and not positional and not named:
            return _NVIDIA[name]
        if name == "ModuleList":
            return list(positional[0]) if positional and isinstance(positional[0], list | tuple) else []
        if name in ("cast", "deepcopy", "copy", "partial") and positional:
            return Unknown("partial") if name == "partial" else positional[-1]
        if name[:1].isupper() or (name.startswith("_") and name[1:2].isupper()):
            made = Made(symbol, tuple(positional), dict(named))
            self.made.append(made)
            return made
        return Unknown(f"{symbol.dotted}(…)")

    def _instantiate(self, cls: Class, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if cls.is_enum or cls.find("__new__") is not MISSING:
            return Unknown(f"{cls.name}(…)")
        instance = Instance(cls)
        self.instances.append(instance)
        constructor = cls.find("__init__")
        if cls.is_dataclass and not isinstance(constructor, Function):
            self._fill(instance, positional, named)
        elif isinstance(constructor, Function):
            self._run(constructor, (instance, *positional), named)
        elif constructor is not MISSING or not cls.closed:
            instance.open = True
        return instance

    def _fill(self, instance: Instance, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        """What the constructor of a dataclass does."""
        lineage = list(reversed(instance.cls.lineage()))
        names = list(dict.fromkeys(name for one in lineage for name in one.fields))
        for one in lineage:
            instance.attributes.update({n: v for n, v in one.fields.items() if v is not MISSING})
        instance.attributes.update(zip(names, positional, strict=False))
        instance.attributes.update(named)
        after = instance.cls.find("__post_init__")
        if isinstance(after, Function):
            self._run(after, (instance,), {})

    def _run(self, function: Function, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self._depth >= MAX_DEPTH:
            raise GaveUpError(f"calls deeper than {MAX_DEPTH}")
        key = id(function.node)
        if key not in self._generators:
            self._generators[key] = _is_generator(function.node)
        if self._generators[key]:
            return Unknown("generator")
        scope = Scope(function.scope.module, function.scope)
        if function.owner is not None:
            scope.names["__class__"] = function.owner
        self._bind(function, positional, named, scope)
        self._depth += 1
        self.ran.add(id(function.node))
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            self.block(function.node.body, scope)
        except ReturnSignal as signal:
            return signal.value
        except ControlSignal:
            raise RaisedError("SyntaxError", "a jump outside of a loop") from None
        finally:
            self._depth -= 1
        return None

    def _bind(
        self, function: Function, positional: Sequence[Any], named: Mapping[str, Any], scope: Scope
    ) -> None:
        given = function.node.args
        rest = dict(named)
        unknown = rest.pop("**", MISSING) is not MISSING
        names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
        defaults = dict(zip(reversed(names), reversed(given.defaults), strict=False))
        values = list(positional)
        for name in names:
            if values:
                scope.names[name] = values.pop(0)
            elif name in rest:
                scope.names[name] = rest.pop(name)
            elif unknown:
                scope.names[name] = Unknown(f"argument {name}")
            elif name in defaults:
                scope.names[name] = self.value(defaults[name], function.scope)
            else:
                raise RaisedError("TypeError", f"{function.name}() misses the argument {name}")
        if given.vararg is not None:
            scope.names[given.vararg.arg] = tuple(values)
        elif values:
            raise RaisedError("TypeError", f"{function.name}() takes fewer arguments")
        for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if arg.arg in rest:
                scope.names[arg.arg] = rest.pop(arg.arg)
            elif unknown:
                scope.names[arg.arg] = Unknown(f"argument {arg.arg}")
            elif default is not None:
                scope.names[arg.arg] = self.value(default, function.scope)
            else:
                raise RaisedError("TypeError", f"{function.name}() misses the argument {arg.arg}")
        if given.kwarg is not None:
            scope.names[given.kwarg.arg] = {**rest, **({MISSING: Unknown("**")} if unknown else {})}
        elif rest:
            raise RaisedError("TypeError", f"{function.name}() does not take {sorted(rest)[0]}")


def _is_generator(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """True for generators and coroutines: calling one runs nothing yet."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    waiting: list[ast.AST] = list(ast.iter_child_nodes(node))
    while waiting:
        found = waiting.pop()
        if isinstance(found, ast.Yield | ast.YieldFrom | ast.Await):
            return True
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(found)
    return False


def _root_of(decorator: ast.expr, scope: Scope) -> str:
    """The package that a decorator comes from; empty when that is not known."""
    name = (dotted_name(decorator) or "").split(".")[0]
    value = scope.get(name)
    if value is MISSING:
        return "builtins" if name else ""
    return value.dotted.split(".")[0] if isinstance(value, Symbol) else ""
