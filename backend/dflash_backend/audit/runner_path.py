"""Between model and kernel: whether the runner learns the window, the backend reads it, the flag is used."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dflash_backend.audit.evaluator import Evaluator
from dflash_backend.audit.source_files import (
    BACKEND_FILES,
    LOAD_UTILS,
    RUNNER,
    SPECULATIVE,
    SourceFiles,
    module_name,
    walk,
)
from dflash_backend.audit.values import MISSING, Class, Function, Instance, Scope, Unknown

FIELD = "sliding_window_size"
FLAG_FIELDS = ("speculative_draft_window_size", "speculative_dflash_draft_window_size")
WORKERS = (f"{SPECULATIVE}/dflash_worker.py", f"{SPECULATIVE}/dflash_worker_v2.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagFacts:
    """What the worker does with the window flag. ``consumed`` None: the worker could not be read."""

    field: str | None = None
    """The name of the server argument that the worker reads."""
    consumed: bool | None = None
    worker: str = ""


NO_FLAG = FlagFacts()
"""What is known where there is no worker to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCode:
    """How the model runner sets its window: statements in order, and the functions that they may call."""

    statements: tuple[ast.stmt, ...]
    helpers: tuple[ast.FunctionDef, ...]


def runner_code(files: SourceFiles) -> RunnerCode | None:
    """The code of the runner that sets its window; None when the runner cannot be read.

    Only statements of methods that something refers to: a method that nobody calls changes nothing.
    """
    tree = files.parsed(RUNNER)
    if tree is None:
        return None
    used = names_used(tree)
    statements: list[ast.stmt] = []
    for runner in tree.body:
        if not isinstance(runner, ast.ClassDef) or runner.name != "ModelRunner":
            continue
        for method in runner.body:
            if isinstance(method, ast.FunctionDef) and (method.name == "__init__" or method.name in used):
                statements += [statement for statement in method.body if _sets_window(statement)]
    utils = files.parsed(LOAD_UTILS)
    helpers = [
        node
        for node in (utils.body if utils is not None else [])
        if isinstance(node, ast.FunctionDef) and FIELD in node.name
    ]
    return RunnerCode(statements=tuple(statements), helpers=tuple(helpers))


def runner_window(evaluator: Evaluator, code: RunnerCode | None, model: Any) -> Any:
    """The window that the runner of the drafter ends up with: a number, None, or Unknown.

    Raises RaisedError when setting it raises, GaveUpError.
    """
    if code is None:
        return Unknown("the model runner could not be read")
    scope = Scope(module_name(RUNNER))
    outside = Class("ModelRunner", (Unknown("ModelRunner"),))
    # The draft classes are in no release's list of hybrid models: that way to a window is closed.
    shape = Instance(outside, {"is_hybrid_swa": False, "attention_chunk_size": None}, open=True)
    runner = Instance(outside, {"model": model, "model_config": shape, "is_draft_worker": True}, open=True)
    scope.names["self"] = runner
    for node in code.helpers:
        scope.names[node.name] = Function(node, Scope(module_name(LOAD_UTILS)), node.name)
    evaluator.body(code.statements, scope)
    value = runner.attributes.get(FIELD, MISSING)
    return None if value is MISSING else value


def _sets_window(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == FIELD
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in walk(statement)
    )


def names_used(tree: ast.AST) -> set[str]:
    """Names that live code refers to: loads, attributes, and texts as for getattr."""
    used: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            used.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            used.add(node.value)
    return used


def backend_reads_window(files: SourceFiles, backend: str) -> bool | None:
    """Whether an attention backend looks at a layer's window; None when its file is not known or not
    there.
    """
    path = BACKEND_FILES.get(backend)
    data = files.data(path) if path else None
    if data is not None and b"layer.sliding_window_size" not in data:
        return False
    tree = files.parsed(path) if path else None
    if tree is None:
        return None
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == FIELD
        and isinstance(node.value, ast.Name)
        and node.value.id == "layer"
        for node in walk(tree)
    )


def flag_facts(files: SourceFiles) -> FlagFacts:
    """What the DFLASH worker does with the window flag."""
    worker = next((path for path in reversed(WORKERS) if files.data(path) is not None), None)
    if worker is None:
        return FlagFacts()
    tree = files.parsed(worker)
    if tree is None:
        return FlagFacts(worker=worker)
    field = _flag_field(tree)
    if field is None:
        return FlagFacts(consumed=False, worker=worker)
    used = names_used(tree)
    consumers = [
        function
        for function in walk(tree)
        if isinstance(function, ast.FunctionDef)
        and function.name != "__init__"
        and any(isinstance(n, ast.Attribute) and n.attr == "draft_window_size" for n in walk(function))
    ]
    return FlagFacts(field=field, consumed=any(one.name in used for one in consumers), worker=worker)


def _flag_field(tree: ast.Module) -> str | None:
    """The server argument from which ``self.draft_window_size`` is set."""
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        if any(isinstance(t, ast.Attribute) and t.attr == "draft_window_size" for t in targets):
            names = [n.attr for n in walk(node.value) if isinstance(n, ast.Attribute)] if node.value else []
            plain = [name for name in names if "window" in name]
            if plain:
                return plain[0]
    return None


def foreign_writes(files: SourceFiles, paths: Iterable[str]) -> list[str]:
    """Places outside the draft model that change what its attention was built with.

    ``file:line`` of stores to ``X.sliding_window_size`` or ``X.attn_type`` where X is not ``self``, and of
    stores to attributes of the draft model's classes.
    """
    found = []
    for path in paths:
        tree = files.parsed(path)
        for node in walk(tree) if tree is not None else []:
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            base = node.value
            own = isinstance(base, ast.Name) and base.id == "self"
            named = isinstance(base, ast.Name) and base.id.startswith(("DFlash", "RadixAttention"))
            if named or (node.attr in (FIELD, "attn_type") and not own):
                found.append(f"{path.rsplit('/', 1)[-1]}:{node.lineno}")
    return found
