"""A symbolic evaluator for plain Python: runs and imports none of it, and says what it does not know.

Reading source by patterns is fooled by dead code, by a method that nobody calls, by a value off by one. So
the constructor of the draft model is evaluated, with the drafter's real configuration, over the syntax tree of the
installed sources: numbers and strings are computed, everything outside stays a name, whatever depends on the
outside is unknown. Where a condition is unknown both ways are taken (``Paths``), and only what all ways agree
on counts as a fact. Steps, depth and paths are bounded: hostile sources cannot hold it up.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dflash_backend.audit.builtin_calls import BUILTINS, attribute_of, is_false, is_true
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

MAX_STEPS = 400_000
MAX_DEPTH = 60
MAX_PATHS = 64

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_PLAIN = (int, float, str, bool, bytes, type(None), tuple, list, dict, set, range)
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


class _ReturnSignal(Exception):  # noqa: N818 (control flow)
    def __init__(self, value: Any) -> None:
        self.value = value


class _BreakSignal(Exception):  # noqa: N818
    pass


class _ContinueSignal(Exception):  # noqa: N818
    pass


class Oracle:
    """Decides unknown conditions along one path; the same condition is decided once a path."""

    def __init__(self, script: Sequence[bool] = ()) -> None:
        self.script = list(script)
        self.taken: list[tuple[str, bool]] = []
        self._known: dict[str, bool] = {}

    def decide(self, question: str) -> bool:
        """The answer on this path."""
        if question not in self._known:
            place = len(self.taken)
            answer = self.script[place] if place < len(self.script) else False
            self.taken.append((question, answer))
            self._known[question] = answer
        return self._known[question]


class Evaluator:
    """Evaluates modules given as source texts by dotted name. One evaluator is one path."""

    def __init__(self, sources: Mapping[str, ast.Module], oracle: Oracle | None = None) -> None:
        self._sources = sources
        self._modules: dict[str, Scope] = {}
        self._steps = 0
        self._depth = 0
        self.oracle = oracle or Oracle()
        self.made: list[Made] = []
        """Everything that was made outside the sources, in order."""

    # Modules -------------------------------------------------------------------------------------------

    def module(self, name: str) -> Scope:
        """The names of a module after its top level was evaluated. Raises GaveUpError, RaisedError."""
        if name not in self._modules:
            scope = Scope(name)
            self._modules[name] = scope
            self._block(self._sources[name].body, scope)
        return self._modules[name]

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                scope.set(alias.asname or name, Symbol(name))
            return
        origin = self._origin(node, scope.module)
        for alias in node.names:
            if alias.name == "*":
                continue
            value: Any = Symbol(f"{origin}.{alias.name}")
            if origin in self._sources:
                found = self.module(origin).get(alias.name)
                if found is not MISSING:
                    value = found
            scope.set(alias.asname or alias.name, value)

    @staticmethod
    def _origin(node: ast.ImportFrom, module: str) -> str:
        if not node.level:
            return node.module or ""
        base = module.split(".")[: -node.level]
        return ".".join([*base, *([node.module] if node.module else [])])

    # Statements ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GaveUpError(f"more than {MAX_STEPS} steps")

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self._tick()
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
                    self._assign(target, value, scope)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self.value(node.value, scope), scope)
            case ast.AugAssign():
                old = self.value(_load(node.target), scope)
                self._assign(node.target, self._binary(node.op, old, self.value(node.value, scope)), scope)
            case ast.Expr():
                self.value(node.value, scope)
            case ast.Return():
                raise _ReturnSignal(None if node.value is None else self.value(node.value, scope))
            case ast.If():
                self._block(node.body if self.truth(node.test, scope) else node.orelse, scope)
            case ast.Assert():
                if is_false(self.value(node.test, scope)):
                    raise RaisedError("AssertionError", self._text(node.msg, scope))
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
            case ast.Global() | ast.Nonlocal():
                scope.globals.update(node.names)
            case ast.Delete():
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        scope.names.pop(target.id, None)
            case ast.Break():
                raise _BreakSignal
            case ast.Continue():
                raise _ContinueSignal
            case ast.Pass():
                pass
            case _:
                raise GaveUpError(f"{type(node).__name__} in line {node.lineno}")

    def _with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            made = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, Unknown("context manager") if made is None else made, scope)
        self._block(node.body, scope)

    def _for(self, node: ast.For, scope: Scope) -> None:
        items = self.value(node.iter, scope)
        if not isinstance(items, list | tuple | range | dict | set | str):
            # How often is not known: what the body may do is done once, with an unknown item.
            items = [Unknown("loop")] if self.oracle.decide(f"{ast.unparse(node.iter)} is not empty") else []
        for item in list(items):
            self._assign(node.target, item, scope)
            try:
                self._block(node.body, scope)
            except _BreakSignal:
                return
            except _ContinueSignal:
                continue
        self._block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> None:
        while self.truth(node.test, scope):
            try:
                self._block(node.body, scope)
            except _BreakSignal:
                return
            except _ContinueSignal:
                continue
            if not isinstance(self.value(node.test, scope), _PLAIN):
                return
        self._block(node.orelse, scope)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        made = self.value(node.exc, scope) if node.exc is not None else Symbol("builtins.Exception")
        if isinstance(made, Made):
            text = made.positional[0] if made.positional else ""
            raise RaisedError(made.symbol.last, text if isinstance(text, str) else "")
        if isinstance(made, Instance):
            raise RaisedError(made.cls.name, "")
        raise RaisedError(made.last if isinstance(made, Symbol) else "Exception", "")

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            try:
                self._block(node.body, scope)
            except RaisedError as raised:
                handler = next((one for one in node.handlers if _handles(one, raised.kind)), None)
                if handler is None:
                    raise
                if handler.name:
                    scope.set(handler.name, Unknown("exception"))
                self._block(handler.body, scope)
            else:
                self._block(node.orelse, scope)
        finally:
            self._block(node.finalbody, scope)

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name():
                scope.set(target.id, value)
            case ast.Attribute():
                owner = self.value(target.value, scope)
                if isinstance(owner, Instance | Made | Class):
                    owner.attributes[target.attr] = value
            case ast.Tuple() | ast.List():
                parts = target.elts
                plain = isinstance(value, tuple | list) and len(value) == len(parts)
                for index, part in enumerate(parts):
                    inner = part.value if isinstance(part, ast.Starred) else part
                    self._assign(inner, value[index] if plain else Unknown("unpacked"), scope)
            case ast.Subscript():
                owner = self.value(target.value, scope)
                key = self.value(target.slice, scope)
                if isinstance(owner, dict | list) and isinstance(key, int | str):
                    try:
                        owner[key] = value  # type: ignore[index]
                    except (IndexError, TypeError) as error:
                        raise RaisedError(type(error).__name__, str(error)) from None

    # Functions and classes -----------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Any:
        made: Any = Function(node, scope, node.name)
        for decorator in reversed(node.decorator_list):
            name = _dotted(decorator)
            if name in (
                "staticmethod",
                "classmethod",
                "property",
                "functools.cached_property",
                "cached_property",
            ):
                if isinstance(made, Function):
                    made.kind = "property" if name.endswith("property") else name
                continue
            applied = self.value(decorator, scope)
            if isinstance(applied, Function | Method):
                # A decorator of the sources may replace what it decorates: it is applied.
                made = self.call(applied, (made,), {})
        return made

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        bases = tuple(self.value(base, scope) for base in node.bases)
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
            if isinstance(value, Function) and value.owner is None:
                value.owner = made
        # Methods see the module's names, not those of the class body.
        for value in made.attributes.values():
            if isinstance(value, Function) and value.scope is inner:
                value.scope = scope
        return made

    def call(self, function: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls a value. What is outside the sources gives ``Made``; what is unknown stays unknown."""
        self._tick()
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
                return function(self, *positional, **named)
            case _:
                return Unknown("call")

    def _outside(self, symbol: Symbol, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if symbol.last in _NVIDIA and not positional and not named:
            return _NVIDIA[symbol.last]
        if symbol.last == "ModuleList" and positional:
            return positional[0]
        if symbol.last in ("cast", "deepcopy", "copy") and positional:
            return positional[-1]
        if symbol.last[:1].isupper() or symbol.last.startswith("_") and symbol.last[1:2].isupper():
            made = Made(symbol, tuple(positional), dict(named))
            self.made.append(made)
            return made
        return Unknown(f"{symbol.dotted}(…)")

    def _instantiate(self, cls: Class, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        instance = Instance(cls)
        constructor = cls.find("__init__")
        if isinstance(constructor, Function):
            self._run(constructor, (instance, *positional), named)
        elif cls.is_dataclass:
            names = [name for one in reversed(cls.lineage()) for name in one.fields]
            instance.attributes.update(
                {n: v for one in cls.lineage() for n, v in one.fields.items() if v is not MISSING}
            )
            instance.attributes.update(zip(names, positional, strict=False))
            instance.attributes.update(named)
        return instance

    def _run(self, function: Function, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self._depth >= MAX_DEPTH:
            raise GaveUpError(f"calls deeper than {MAX_DEPTH}")
        scope = Scope(function.scope.module, function.scope)
        self._bind(function, positional, named, scope)
        if function.owner is not None:
            scope.names.setdefault("__class__", function.owner)
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function.node)):
                return Unknown("generator")
            self._block(function.node.body, scope)
        except _ReturnSignal as signal:
            return signal.value
        except RecursionError:
            raise GaveUpError("nested too deeply") from None
        finally:
            self._depth -= 1
        return None

    def _bind(
        self, function: Function, positional: Sequence[Any], named: Mapping[str, Any], scope: Scope
    ) -> None:
        given = function.node.args
        rest = dict(named)
        names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
        values = list(positional)
        for name in names:
            if values:
                scope.names[name] = values.pop(0)
            elif name in rest:
                scope.names[name] = rest.pop(name)
        if given.vararg is not None:
            scope.names[given.vararg.arg] = tuple(values)
        for name, default in zip(reversed(names), reversed(given.defaults), strict=False):
            if name not in scope.names:
                scope.names[name] = self.value(default, function.scope)
        for arg, kw_default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if arg.arg in rest:
                scope.names[arg.arg] = rest.pop(arg.arg)
            elif kw_default is not None:
                scope.names[arg.arg] = self.value(kw_default, function.scope)
        for name in [*names, *(arg.arg for arg in given.kwonlyargs)]:
            scope.names.setdefault(name, Unknown(f"argument {name}"))
        if given.kwarg is not None:
            scope.names[given.kwarg.arg] = rest

    # Expressions ---------------------------------------------------------------------------------------

    def truth(self, node: ast.expr, scope: Scope) -> bool:
        """The truth of a condition on this path."""
        value = self.value(node, scope)
        if is_true(value):
            return True
        if is_false(value):
            return False
        return self.oracle.decide(f"{scope.module}: {ast.unparse(node)[:200]}")

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression."""
        self._tick()
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                return self.attribute(self.value(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp():
                return self._binary(node.op, self.value(node.left, scope), self.value(node.right, scope))
            case ast.UnaryOp():
                return self._unary(node, scope)
            case ast.BoolOp():
                return self._bool(node, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.IfExp():
                return self.value(node.body if self.truth(node.test, scope) else node.orelse, scope)
            case ast.Tuple():
                return tuple(self._items(node.elts, scope))
            case ast.List():
                return self._items(node.elts, scope)
            case ast.Set():
                return _hashed(self._items(node.elts, scope))
            case ast.Dict():
                return self._dict(node, scope)
            case ast.Subscript():
                return self._subscript(self.value(node.value, scope), node.slice, scope)
            case ast.JoinedStr():
                return self._text(node, scope)
            case ast.ListComp() | ast.GeneratorExp():
                return self._comprehension(node, scope)
            case ast.Lambda():
                return Function(node, scope, "<lambda>")
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self._assign(node.target, value, scope)
                return value
            case _:
                return Unknown(type(node).__name__)

    def _name(self, name: str, scope: Scope) -> Any:
        value = scope.get(name)
        if value is not MISSING:
            return value
        if name in BUILTINS:
            return BUILTINS[name]
        return Symbol(f"builtins.{name}")

    def attribute(self, owner: Any, name: str, default: Any = MISSING) -> Any:
        """An attribute of a value; ``default`` when it certainly has none, else RaisedError AttributeError."""
        found = attribute_of(self, owner, name)
        if found is not MISSING:
            return found
        if default is not MISSING:
            return default
        raise RaisedError("AttributeError", name)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            owner = scope.get("__class__")
            receiver = scope.get(_first_argument(scope))
            return _Super(owner, receiver)
        function = self.value(node.func, scope)
        positional: list[Any] = []
        for argument in node.args:
            value = self.value(argument.value if isinstance(argument, ast.Starred) else argument, scope)
            if isinstance(argument, ast.Starred):
                positional += value if isinstance(value, list | tuple) else [Unknown("*arguments")]
            else:
                positional.append(value)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named.update({str(key): item for key, item in value.items()})
        return self.call(function, positional, named)

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        function = _BINARY.get(type(op))
        if function is None or not (isinstance(left, _PLAIN) and isinstance(right, _PLAIN)):
            return Unknown("arithmetic")
        if isinstance(op, ast.Mult) and _size(left) * _size(right) > 100_000:
            return Unknown("a large product")
        try:
            return function(left, right)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise RaisedError(type(error).__name__, str(error)) from None

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            if is_true(value) or is_false(value):
                return is_false(value)
            return Unknown(f"not {ast.unparse(node.operand)[:100]}")
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return Unknown("arithmetic")

    def _bool(self, node: ast.BoolOp, scope: Scope) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = Unknown("condition")
        unknown = False
        for part in node.values:
            value = self.value(part, scope)
            if (is_true(value) and stop_at) or (is_false(value) and not stop_at):
                return value if not unknown or not stop_at else Unknown("condition")
            if not (is_true(value) or is_false(value)):
                unknown = True
        return Unknown("condition") if unknown else value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        result: Any = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, scope)
            result = self._compare_two(op, left, right)
            if not is_true(result):
                return result
            left = right
        return result

    def _compare_two(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
            same = _same(left, right)
            if same is None:
                return Unknown("comparison")
            return same if isinstance(op, ast.Eq | ast.Is) else not same
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, list | tuple | dict | set | str | range):
                return Unknown("membership")
            answers = [_same(left, item) for item in right] if not isinstance(right, str) else []
            if isinstance(right, str):
                if not isinstance(left, str):
                    return Unknown("membership")
                answers = [left in right]
            found = True if True in answers else (None if None in answers else False)
            if found is None:
                return Unknown("membership")
            return found if isinstance(op, ast.In) else not found
        if isinstance(left, _PLAIN) and isinstance(right, _PLAIN):
            try:
                return _COMPARE[type(op)](left, right)
            except TypeError as error:
                raise RaisedError("TypeError", str(error)) from None
        return Unknown("comparison")

    def _items(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.value(node.value, scope)
                items += value if isinstance(value, list | tuple) else [Unknown("*items")]
            else:
                items.append(self.value(node, scope))
        return items

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        result: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node, scope)
            if key_node is None:
                if isinstance(value, dict):
                    result.update(value)
                continue
            key = self.value(key_node, scope)
            if isinstance(key, str | int | bool | float | tuple | type(None) | Symbol):
                result[key] = value
        return result

    def _subscript(self, owner: Any, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Slice):
            low = self.value(node.lower, scope) if node.lower is not None else None
            high = self.value(node.upper, scope) if node.upper is not None else None
            bounds = all(isinstance(bound, int | type(None)) for bound in (low, high)) and node.step is None
            return owner[low:high] if bounds and isinstance(owner, list | tuple | str) else Unknown("slice")
        key = self.value(node, scope)
        if isinstance(owner, list | tuple | str | dict | range) and isinstance(
            key, int | str | tuple | type(None)
        ):
            try:
                return owner[key]  # type: ignore[index, call-overload]
            except (KeyError, IndexError, TypeError) as error:
                raise RaisedError(type(error).__name__, str(error)) from None
        return Unknown("item")

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
        if len(node.generators) != 1:
            return Unknown("comprehension")
        generator = node.generators[0]
        items = self.value(generator.iter, scope)
        if not isinstance(items, list | tuple | range | dict | set | str):
            return Unknown("comprehension over something unknown")
        inner = Scope(scope.module, scope)
        results = []
        for item in items:
            self._assign(generator.target, item, inner)
            if all(self.truth(test, inner) for test in generator.ifs):
                results.append(self.value(node.elt, inner))
        return results

    def _text(self, node: ast.expr | None, scope: Scope) -> str:
        if node is None:
            return ""
        if isinstance(node, ast.JoinedStr):
            parts = []
            for part in node.values:
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                value = self.value(inner, scope)
                parts.append(str(value) if isinstance(value, _PLAIN) else "…")
            return "".join(parts)
        value = self.value(node, scope)
        return value if isinstance(value, str) else ""


class _Super:
    """``super()``: what the bases in the sources have; elsewhere calls do nothing."""

    def __init__(self, owner: Any, receiver: Any) -> None:
        self.owner = owner
        self.receiver = receiver


def _first_argument(scope: Scope) -> str:
    """The name of the first bound argument: ``self``, whatever it is called."""
    return next((name for name in scope.names if name != "__class__"), "self")


def _load(target: ast.expr) -> ast.expr:
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return node.id if isinstance(node, ast.Name) else None


def _handles(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {(_dotted(one) or "").rsplit(".", 1)[-1] for one in types}
    return kind in names or bool(names & {"Exception", "BaseException"})


def _hashed(items: list[Any]) -> Any:
    try:
        return set(items)
    except TypeError:
        return Unknown("set")


def _size(value: Any) -> int:
    if isinstance(value, int | float):
        return min(abs(int(value)), 10**9) if value == value and abs(value) != float("inf") else 10**9
    return len(value) if hasattr(value, "__len__") else 1


def _same(left: Any, right: Any) -> bool | None:
    """Whether two values are equal; None when that cannot be known."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    if isinstance(left, Symbol) and isinstance(right, Symbol):
        if left.dotted == right.dotted:
            return True
        # Members of one enumeration differ; other names may mean the same thing.
        return False if left.parent == right.parent and left.parent.rsplit(".", 1)[-1][:1].isupper() else None
    if isinstance(left, Symbol | Made) or isinstance(right, Symbol | Made):
        other = right if isinstance(left, Symbol | Made) else left
        return False if other is None and isinstance(left if other is right else right, Made) else None
    if isinstance(left, Instance | Class | Function | Config) or isinstance(
        right, Instance | Class | Function | Config
    ):
        return left is right
    try:
        return bool(left == right)
    except RecursionError:
        return None


def explore(run: Callable[[Oracle], Any]) -> list[tuple[list[tuple[str, bool]], Any]]:
    """Runs ``run`` once for every combination of answers to unknown conditions, ``MAX_PATHS`` at most.

    Each result comes with the answers it was found under. Raises GaveUpError when there are more paths.
    """
    results: list[tuple[list[tuple[str, bool]], Any]] = []
    waiting: list[list[bool]] = [[]]
    while waiting:
        if len(results) >= MAX_PATHS:
            raise GaveUpError(f"more than {MAX_PATHS} ways through the source")
        script = waiting.pop()
        oracle = Oracle(script)
        results.append((oracle.taken, run(oracle)))
        for place in range(len(script), len(oracle.taken)):
            waiting.append([answer for _, answer in oracle.taken[:place]] + [True])
    return results
