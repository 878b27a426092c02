"""Expressions of the symbolic evaluator: from a syntax node to a value, Unknown where it cannot be known."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dflash_backend.audit.builtin_calls import BUILTINS, attribute_of
from dflash_backend.audit.operations import (
    MAX_ITEMS,
    PLAIN,
    binary,
    compare,
    is_false,
    is_key,
    is_true,
    subscript,
    text_of,
)
from dflash_backend.audit.paths import Oracle
from dflash_backend.audit.values import (
    MISSING,
    Class,
    Config,
    Function,
    GaveUpError,
    Instance,
    Made,
    RaisedError,
    Scope,
    Super,
    Symbol,
    Unknown,
)

ITERABLE = (list, tuple, range, dict, set, str)


class Expressions:
    """Evaluates expressions; statements, calls and classes are added by ``Evaluator``."""

    oracle: Oracle

    def call(self, function: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls a value."""
        raise NotImplementedError

    def truth(self, node: ast.expr, scope: Scope) -> bool:
        """The truth of a condition on this path: each unknown part of it is decided once."""
        if isinstance(node, ast.BoolOp):
            stop_at = isinstance(node.op, ast.Or)
            return stop_at if any(self.truth(part, scope) == stop_at for part in node.values) else not stop_at
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.truth(node.operand, scope)
        value = self.value(node, scope)
        if is_true(value):
            return True
        if is_false(value):
            return False
        return self.oracle.decide(f"{scope.module}: {describe(node)}")

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression. Raises RaisedError, GaveUpError."""
        self.oracle.tick()
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
                return binary(node.op, self.value(node.left, scope), self.value(node.right, scope))
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
                return hashed(self._items(node.elts, scope))
            case ast.Dict():
                return self._dict(node, scope)
            case ast.Subscript():
                return self._subscript(self.value(node.value, scope), node.slice, scope)
            case ast.JoinedStr():
                text = self.text(node, scope)
                return Unknown("text") if "…" in text else text
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, scope)
            case ast.Lambda():
                return Function(node, scope, "<lambda>")
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.assign(node.target, value, scope)
                return value
            case _:
                return Unknown(type(node).__name__)

    def _name(self, name: str, scope: Scope) -> Any:
        value = scope.get(name)
        if value is not MISSING:
            return value
        return BUILTINS[name] if name in BUILTINS else Symbol(f"builtins.{name}")

    def attribute(self, owner: Any, name: str, default: Any = MISSING) -> Any:
        """An attribute of a value; ``default`` when it certainly has none, else RaisedError."""
        found = attribute_of(self, owner, name)  # type: ignore[arg-type]
        if found is not MISSING:
            return found
        if default is not MISSING:
            return default
        raise RaisedError("AttributeError", name)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``."""
        if isinstance(owner, Config):
            owner.values[name] = value
        elif isinstance(owner, Instance | Made | Class):
            if isinstance(owner, Instance) and any(
                "__setattr__" in c.attributes for c in owner.cls.lineage()
            ):
                owner.open = True
                value = Unknown("__setattr__")
            owner.attributes[name] = value

    # Targets -------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Binds a value to a name, an attribute, an item or a tuple of those."""
        match target:
            case ast.Name():
                scope.set(target.id, value)
            case ast.Attribute():
                self.set_attribute(self.value(target.value, scope), target.attr, value)
            case ast.Tuple() | ast.List():
                for part, item in zip(target.elts, unpack(target.elts, value), strict=True):
                    self.assign(part.value if isinstance(part, ast.Starred) else part, item, scope)
            case ast.Subscript():
                self._assign_item(target, value, scope)
            case _:
                raise GaveUpError(f"an assignment in line {target.lineno}")

    def _assign_item(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        owner = self.value(target.value, scope)
        key = self.value(target.slice, scope)
        if isinstance(owner, dict):
            if len(owner) >= MAX_ITEMS:
                raise GaveUpError("a dictionary grows too large")
            if is_key(key):
                owner[key] = value
            else:
                # Any of its entries may be another one now.
                owner[MISSING] = Unknown("an unknown key")
        elif isinstance(owner, list) and isinstance(key, int):
            if not -len(owner) <= key < len(owner):
                raise RaisedError("IndexError", "list assignment index out of range")
            owner[key] = value
        elif isinstance(owner, list):
            owner[:] = [Unknown("an unknown item")] * len(owner)

    # Parts ---------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and scope.get("super") is MISSING:
            return self._super(node, scope)
        function = self.value(node.func, scope)
        positional = self._items(node.args, scope)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict) and MISSING not in value:
                named.update({key: item for key, item in value.items() if isinstance(key, str)})
            else:
                named["**"] = Unknown("**arguments")
        return self.call(function, positional, named)

    def _super(self, node: ast.Call, scope: Scope) -> Any:
        if len(node.args) == 2:
            return Super(self.value(node.args[0], scope), self.value(node.args[1], scope))
        return Super(scope.get("__class__"), scope.get(first_argument(scope)))

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            if is_true(value) or is_false(value):
                return is_false(value)
            return Unknown(f"not {describe(node.operand)}")
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return (
            value
            if isinstance(node.op, ast.UAdd) and isinstance(value, int | float)
            else Unknown("arithmetic")
        )

    def _bool(self, node: ast.BoolOp, scope: Scope) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part, scope)
            if not (is_true(value) or is_false(value)):
                # The rest is only evaluated on one of the two ways.
                return value if part is node.values[-1] else Unknown(describe(node))
            if is_true(value) == stop_at:
                break
        return value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        result: Any = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, scope)
            result = compare(op, left, right)
            if not is_true(result):
                return result
            left = right
        return result

    def _items(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.value(node.value, scope)
                known = isinstance(iterable(value), list | tuple | range | set)
                items += value if known else [Unknown("*items")]
            else:
                items.append(self.value(node, scope))
        if len(items) > MAX_ITEMS:
            raise GaveUpError("a list grows too large")
        return items

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        result: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node, scope)
            if key_node is None:
                result.update(value if isinstance(value, dict) else {MISSING: Unknown("**")})
                continue
            key = self.value(key_node, scope)
            result[key if is_key(key) else MISSING] = value
        return result

    def _subscript(self, owner: Any, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Slice):
            parts = [None if n is None else self.value(n, scope) for n in (node.lower, node.upper, node.step)]
            plain = all(part is None or isinstance(part, int) for part in parts) and parts[2] != 0
            known = plain and isinstance(owner, list | tuple | str | range)
            return owner[slice(*parts)] if known else Unknown("slice")
        key = self.value(node, scope)
        if isinstance(owner, dict) and MISSING in owner:
            return Unknown("item")
        return subscript(owner, key)

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, scope: Scope
    ) -> Any:
        inner = Scope(scope.module, scope)
        made: list[Any] = []
        pairs: dict[Any, Any] = {}
        for known in self._rounds(node.generators, inner):
            if not known:
                return Unknown("comprehension over something unknown")
            if isinstance(node, ast.DictComp):
                key = self.value(node.key, inner)
                pairs[key if is_key(key) else MISSING] = self.value(node.value, inner)
            else:
                made.append(self.value(node.elt, inner))
            if len(made) + len(pairs) > MAX_ITEMS:
                raise GaveUpError("a comprehension grows too large")
        if isinstance(node, ast.DictComp):
            return pairs
        return hashed(made) if isinstance(node, ast.SetComp) else made

    def _rounds(self, generators: Sequence[ast.comprehension], scope: Scope) -> Iterator[bool]:
        """One item per round with the names bound; False when what is gone over is not known."""
        if not generators:
            yield True
            return
        items = iterable(self.value(generators[0].iter, scope))
        if not isinstance(items, ITERABLE) or (isinstance(items, dict) and MISSING in items):
            yield False
            return
        for item in list(items):
            self.oracle.tick()
            self.assign(generators[0].target, item, scope)
            if all(self.truth(test, scope) for test in generators[0].ifs):
                yield from self._rounds(generators[1:], scope)

    def text(self, node: ast.expr | None, scope: Scope) -> str:
        """The text of a message or an f-string, with ``…`` for what is not known."""
        if node is None:
            return ""
        if not isinstance(node, ast.JoinedStr):
            value = self.value(node, scope)
            return value[:2000] if isinstance(value, str) else ""
        parts = []
        for part in node.values:
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part, scope)
            if (
                isinstance(part, ast.FormattedValue)
                and part.conversion == ord("r")
                and isinstance(value, str)
            ):
                value = repr(value[:500])
            parts.append(text_of(value) if isinstance(value, PLAIN) else "…")
        return "".join(parts)[:2000]


def iterable(value: Any) -> Any:
    """``value``, as something to go over. Raises RaisedError when it certainly cannot be."""
    if isinstance(value, int | float | None):
        raise RaisedError("TypeError", f"{type(value).__name__} is not iterable")
    return value


def unpack(parts: Sequence[ast.expr], value: Any) -> list[Any]:
    """One value per target of an unpacking; Unknown where it cannot be known. Raises RaisedError."""
    starred = next((i for i, part in enumerate(parts) if isinstance(part, ast.Starred)), None)
    if not isinstance(value, list | tuple | range):
        if isinstance(value, int | float | None):
            raise RaisedError("TypeError", "cannot unpack")
        return [Unknown("unpacked")] * len(parts)
    items = list(value)
    if starred is None:
        if len(items) != len(parts):
            raise RaisedError("ValueError", "wrong number of values to unpack")
        return items
    after = len(parts) - starred - 1
    if len(items) < starred + after:
        raise RaisedError("ValueError", "not enough values to unpack")
    end = len(items) - after
    return [*items[:starred], items[starred:end], *items[end:]]


def first_argument(scope: Scope) -> str:
    """The name of the first bound argument: ``self``, whatever it is called."""
    around: Scope | None = scope
    while around is not None:
        if "__class__" in around.names:
            return next((name for name in around.names if name != "__class__"), "self")
        around = around.parent
    return "self"


def describe(node: ast.expr) -> str:
    """A condition as its source, cut short."""
    try:
        return ast.unparse(node)[:200]
    except (RecursionError, ValueError):
        return f"the condition in line {node.lineno}"


def hashed(items: list[Any]) -> Any:
    """A set of the items; Unknown when one cannot be a member."""
    return set(items) if all(is_key(item) for item in items) else Unknown("set")
