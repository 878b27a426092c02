"""Statements of the symbolic evaluator: assignments, branches, loops, and what is raised and caught."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from dflash_backend.audit.expressions import ITERABLE, Expressions, describe, iterable
from dflash_backend.audit.operations import PLAIN, binary, is_false
from dflash_backend.audit.values import (
    MISSING,
    Class,
    GaveUpError,
    Instance,
    Made,
    RaisedError,
    Scope,
    Symbol,
    Unknown,
)


class ControlSignal(Exception):  # noqa: N818 (control flow)
    """A jump that a function or a loop catches; elsewhere it is no valid Python."""


class ReturnSignal(ControlSignal):
    """A return on its way to the call."""

    def __init__(self, value: Any) -> None:
        self.value = value


class BreakSignal(ControlSignal):
    """A break on its way to the loop."""


class ContinueSignal(ControlSignal):
    """A continue on its way to the loop."""


class Statements(Expressions):
    """Evaluates statements; imports, definitions and calls are added by ``Evaluator``."""

    def __init__(self) -> None:
        self.trying = 0
        """How many try blocks with handlers are around."""
        self.handling: list[RaisedError] = []
        """What is being handled, the innermost last."""

    def import_names(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Binds what an import gives."""
        raise NotImplementedError

    def define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Any:
        """A function with its decorators applied."""
        raise NotImplementedError

    def define_class(self, node: ast.ClassDef, scope: Scope) -> Any:
        """A class with its decorators applied."""
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Evaluates statements in order. Raises RaisedError, GaveUpError."""
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self.oracle.tick()
        match node:
            case ast.Import() | ast.ImportFrom():
                self.import_names(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.set(node.name, self.define_function(node, scope))
            case ast.ClassDef():
                scope.set(node.name, self.define_class(node, scope))
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
                raise ReturnSignal(None if node.value is None else self.value(node.value, scope))
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
                raise BreakSignal
            case ast.Continue():
                raise ContinueSignal
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
        items = iterable(self.value(node.iter, scope))
        if not isinstance(items, ITERABLE) or (isinstance(items, dict) and MISSING in items):
            # How often is not known: what the body may do is done once, with an unknown item.
            items = [Unknown("loop")] if self.oracle.decide(f"{describe(node.iter)} is not empty") else []
        for item in list(items):
            self.assign(node.target, item, scope)
            try:
                self.block(node.body, scope)
            except BreakSignal:
                return
            except ContinueSignal:
                continue
        self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> None:
        while self.truth(node.test, scope):
            try:
                self.block(node.body, scope)
            except BreakSignal:
                return
            except ContinueSignal:
                pass
            if not isinstance(self.value(node.test, scope), PLAIN):
                # How often is not known: once stands for any number.
                return
        self.block(node.orelse, scope)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is None:
            raise (
                self.handling[-1] if self.handling else RaisedError("RuntimeError", "nothing to raise again")
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
        except (RaisedError, ControlSignal):
            # A return in finally wins, as in Python; a GaveUpError ends everything.
            self.block(node.finalbody, scope)
            raise
        self.block(node.finalbody, scope)

    def _guarded(self, node: ast.Try, scope: Scope) -> None:
        self.trying += 1 if node.handlers else 0
        try:
            self.block(node.body, scope)
        except RaisedError as raised:
            handler = next((one for one in node.handlers if _handles(one, raised.kind)), None)
            if handler is None:
                raise
            if handler.name:
                scope.set(handler.name, Unknown("exception"))
            self.handling.append(raised)
            try:
                self.block(handler.body, scope)
            finally:
                self.handling.pop()
            return
        finally:
            self.trying -= 1 if node.handlers else 0
        self.block(node.orelse, scope)


def dotted_name(node: ast.expr) -> str | None:
    """The name of a plain or called decorator or exception: ``functools.cache``; None for anything else."""
    if isinstance(node, ast.Call):
        return dotted_name(node.func)
    if isinstance(node, ast.Attribute):
        inner = dotted_name(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return node.id if isinstance(node, ast.Name) else None


_IMPORT_ERRORS = frozenset({"ModuleNotFoundError"})


def _handles(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {(dotted_name(one) or "").rsplit(".", 1)[-1] for one in types}
    if kind in _IMPORT_ERRORS and "ImportError" in names:
        return True
    if kind in ("KeyError", "IndexError") and "LookupError" in names:
        return True
    return kind in names or bool(names & {"Exception", "BaseException"})
