"""A symbolic evaluator for plain Python: runs and imports none of it, and says what it does not know.

Reading source by patterns is fooled by dead code, by a method that nobody calls, by a value off by one. So the
constructor of the draft model is evaluated, with the drafter's real configuration, over the syntax tree of the
installed sources: numbers and texts are computed, everything outside stays a name, whatever depends on the
outside is unknown. Where a condition is unknown both ways are taken (``paths.explore``), and only what all ways
agree on counts as a fact. Steps, depth, paths and sizes are bounded: hostile sources cannot hold it up.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_backend.audit.expressions import ITERABLE, Expressions, describe
from dflash_backend.audit.operations import PLAIN, binary, is_false
from dflash_backend.audit.paths import Oracle, explore
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


class _ReturnSignal(Exception):  # noqa: N818 (control flow)
    def __init__(self, value: Any) -> None:
        self.value = value


class _BreakSignal(Exception):  # noqa: N818
    pass


class _ContinueSignal(Exception):  # noqa: N818
    pass


class Evaluator(Expressions):
    """Evaluates modules given as syntax trees by dotted name. One evaluator is one path."""

    def __init__(self, sources: Mapping[str, ast.Module], oracle: Oracle | None = None) -> None:
        self._sources = sources
        self._modules: dict[str, Scope] = {}
        self._depth = 0
        self._handling: list[RaisedError] = []
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
            self.block(self._sources[name].body, scope)
        return self._modules[name]

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
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
        if self._trying and root and root not in _SURE and not self.oracle.decide(f"{root} can be imported"):
            raise RaisedError("ModuleNotFoundError", root)

    _trying = 0

    @staticmethod
    def _origin(node: ast.ImportFrom, module: str) -> str:
        if not node.level:
            return node.module or ""
        base = module.split(".")[: -node.level]
        return ".".join([*base, *([node.module] if node.module else [])])

    # Statements ----------------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Evaluates statements in order. Raises RaisedError, GaveUpError."""
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self.oracle.tick()
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.set(node.name, self._function(node, scope))
            case ast.ClassDef():
                scope.set(node.name, self._class(node, scope))
            case ast.Assign():
                value = self.value(node.value, scope)
                for target in node.targets:
                    self.assign(target, value, scope)
            case ast.AnnAssign():
                if node.value is not None:
                    self.assign(node.target, self.value(node.value, scope), scope)
            case ast.AugAssign():
                self._augmented(node, scope)
            case ast.Expr():
                self.value(node.value, scope)
            case ast.Return():
                raise _ReturnSignal(None if node.value is None else self.value(node.value, scope))
            case ast.If():
                self.block(node.body if self.truth(node.test, scope) else node.orelse, scope)
            case ast.Assert():
                if is_false(self.value(node.test, scope)):
                    raise RaisedError("AssertionError", self.text(node.msg, scope))
            case ast.Raise():
                self._raise(node, scope)
            case ast.Try():
                self._try(node, scope)
            case ast.For():
                self._for(node, scope)
            case ast.While():
                self._while(node, scope)
            case ast.With():
                self._with(node, scope)
            case ast.Global():
                scope.globals.update(node.names)
            case ast.Nonlocal():
                scope.nonlocals.update(node.names)
            case ast.Delete():
                self._delete(node, scope)
            case ast.Break():
                raise _BreakSignal
            case ast.Continue():
                raise _ContinueSignal
            case ast.Pass():
                pass
            case _:
                raise GaveUpError(f"{type(node).__name__} in line {node.lineno}")

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        if isinstance(node.target, ast.Name):
            old = self.value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node), scope)
        elif isinstance(node.target, ast.Attribute):
            old = self.attribute(self.value(node.target.value, scope), node.target.attr)
        else:
            old = Unknown("item")
        self.assign(node.target, binary(node.op, old, self.value(node.value, scope)), scope)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)
            elif isinstance(target, ast.Attribute):
                owner = self.value(target.value, scope)
                if isinstance(owner, Instance | Made | Class):
                    owner.attributes.pop(target.attr, None)
            elif isinstance(target, ast.Subscript):
                owner = self.value(target.value, scope)
                if isinstance(owner, dict):
                    owner[MISSING] = Unknown("del")
                elif isinstance(owner, list):
                    owner[:] = [Unknown("del")] * len(owner)

    def _with(self, node: ast.With, scope: Scope) -> None:
        swallows = False
        for item in node.items:
            made = self.value(item.context_expr, scope)
            swallows = swallows or "suppress" in describe(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, Unknown("context manager") if made is None else made, scope)
        try:
            self.block(node.body, scope)
        except RaisedError:
            if not swallows:
                raise

    def _for(self, node: ast.For, scope: Scope) -> None:
        items = self.value(node.iter, scope)
        if not isinstance(items, ITERABLE) or (isinstance(items, dict) and MISSING in items):
            # How often is not known: what the body may do is done once, with an unknown item.
            items = [Unknown("loop")] if self.oracle.decide(f"{describe(node.iter)} is not empty") else []
        for item in list(items):
            self.assign(node.target, item, scope)
            try:
                self.block(node.body, scope)
            except _BreakSignal:
                return
            except _ContinueSignal:
                continue
        self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> None:
        while self.truth(node.test, scope):
            try:
                self.block(node.body, scope)
            except _BreakSignal:
                return
            except _ContinueSignal:
                pass
            if not isinstance(self.value(node.test, scope), PLAIN):
                # How often is not known: once stands for any number.
                return
        self.block(node.orelse, scope)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is None:
            raise (
                self._handling[-1]
                if self._handling
                else RaisedError("RuntimeError", "nothing to raise again")
            )
        made = self.value(node.exc, scope)
        if isinstance(made, Made):
            text = made.positional[0] if made.positional else ""
            raise RaisedError(made.symbol.last, text if isinstance(text, str) else "")
        if isinstance(made, Instance):
            raise RaisedError(made.cls.name, "")
        raise RaisedError(made.last if isinstance(made, Symbol) else "Exception", "")

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self._guarded(node, scope)
        except (RaisedError, _ReturnSignal, _BreakSignal, _ContinueSignal):
            # A return in finally wins, as in Python; a GaveUpError ends everything.
            self.block(node.finalbody, scope)
            raise
        self.block(node.finalbody, scope)

    def _guarded(self, node: ast.Try, scope: Scope) -> None:
        self._trying += 1 if node.handlers else 0
        try:
            self.block(node.body, scope)
        except RaisedError as raised:
            handler = next((one for one in node.handlers if _handles(one, raised.kind)), None)
            if handler is None:
                raise
            if handler.name:
                scope.set(handler.name, Unknown("exception"))
            self._handling.append(raised)
            try:
                self.block(handler.body, scope)
            finally:
                self._handling.pop()
            return
        finally:
            self._trying -= 1 if node.handlers else 0
        self.block(node.orelse, scope)

    # Functions and classes -----------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Any:
        made: Any = Function(node, scope, node.name)
        for decorator in reversed(node.decorator_list):
            name = _dotted(decorator) or ""
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

    def _class(self, node: ast.ClassDef, scope: Scope) -> Any:
        bases = tuple(self.value(base, scope) for base in node.bases)
        if any(keyword.arg == "metaclass" for keyword in node.keywords):
            bases = (*bases, Unknown("metaclass"))
        inner = Scope(scope.module, scope)
        made = Class(node.name, bases)
        made.is_dataclass = any("dataclass" in (_dotted(d) or "") for d in node.decorator_list)
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
        if _is_generator(function.node):
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
        except _ReturnSignal as signal:
            return signal.value
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


@functools.lru_cache(maxsize=4096)
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


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return node.id if isinstance(node, ast.Name) else None


def _root_of(decorator: ast.expr, scope: Scope) -> str:
    """The package that a decorator comes from; empty when that is not known."""
    name = (_dotted(decorator) or "").split(".")[0]
    value = scope.get(name)
    if value is MISSING:
        return "builtins" if name else ""
    return value.dotted.split(".")[0] if isinstance(value, Symbol) else ""


_IMPORT_ERRORS = frozenset({"ModuleNotFoundError"})


def _handles(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {(_dotted(one) or "").rsplit(".", 1)[-1] for one in types}
    if kind in _IMPORT_ERRORS and "ImportError" in names:
        return True
    if kind in ("KeyError", "IndexError") and "LookupError" in names:
        return True
    return kind in names or bool(names & {"Exception", "BaseException"})
