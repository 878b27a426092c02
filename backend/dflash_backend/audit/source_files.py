"""Files of a source tree, read and parsed with care: too large, broken and unreadable ones are named."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence

from dflash_backend.audit.inputs import MAX_SOURCE_BYTES, SourceTree
from dflash_backend.core.text import sanitise

MODELS = "sglang/srt/models"
DFLASH = f"{MODELS}/dflash.py"
SPECULATIVE = "sglang/srt/speculative"
RUNNER = "sglang/srt/model_executor/model_runner.py"
LOAD_UTILS = "sglang/srt/model_executor/model_runner_components/load_model_utils.py"
RADIX = "sglang/srt/layers/radix_attention.py"
ATTENTION = "sglang/srt/layers/attention"
BACKEND_FILES: Mapping[str, str] = {
    "triton": f"{ATTENTION}/triton_backend.py",
    "flashinfer": f"{ATTENTION}/flashinfer_backend.py",
    "fa3": f"{ATTENTION}/flashattention_backend.py",
    "fa4": f"{ATTENTION}/flashattention_backend.py",
    "trtllm_mha": f"{ATTENTION}/trtllm_mha_backend.py",
}


class SourceFiles:
    """Reads files of a tree once each. ``problems`` say what could not be read, by path."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._data: dict[str, bytes | None] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self.problems: dict[str, str] = {}

    @property
    def where(self) -> str:
        """What is read."""
        return self._tree.where

    @property
    def read_so_far(self) -> Mapping[str, bytes]:
        """Everything that was read."""
        return {path: data for path, data in self._data.items() if data is not None}

    def data(self, path: str) -> bytes | None:
        """The bytes of a file; None when there is none or it cannot be read, which is then a problem."""
        if path not in self._data:
            found: bytes | None = None
            try:
                found = self._tree.read(path)
                if found is not None and len(found) > MAX_SOURCE_BYTES:
                    self.problems[path] = f"{len(found) / 1e6:.0f} MB: no source is so large"
                    found = None
            except OSError as error:
                self.problems[path] = sanitise(error.strerror or str(error), multiline=False, limit=200)
            self._data[path] = found
        return self._data[path]

    def parsed(self, path: str) -> ast.Module | None:
        """A file's syntax tree; None when there is none or it is no Python, which is then a problem."""
        if path not in self._trees:
            data = self.data(path)
            self._trees[path] = None if data is None else self._parse(path, data)
        return self._trees[path]

    def _parse(self, path: str, data: bytes) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(data)
        except SyntaxError as error:
            text = sanitise(error.msg or "syntax error", multiline=False, limit=120)
            self.problems[path] = f"no valid Python: {text}" + (
                f" in line {error.lineno}" if error.lineno else ""
            )
        except (ValueError, UnicodeError, LookupError):
            self.problems[path] = "no Python source in UTF-8"
        except (RecursionError, MemoryError):
            self.problems[path] = "nested too deeply"
        return None

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder; empty when there is none or it cannot be read."""
        try:
            return self._tree.names(folder)
        except OSError as error:
            self.problems[folder or "."] = sanitise(error.strerror or str(error), multiline=False, limit=200)
            return ()


def module_name(path: str) -> str:
    """The dotted name of a file."""
    return path.removesuffix(".py").replace("/", ".")


def walk(tree: ast.AST) -> list[ast.AST]:
    """Every node below, without those that a constant condition or an earlier return cuts off."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += _live(value, node, name)
    return found


def _live(items: list[object], node: ast.AST, name: str) -> list[ast.AST]:
    if isinstance(node, ast.If | ast.While) and name == _dead_branch(node.test):
        return []
    live: list[ast.AST] = []
    for item in items:
        if isinstance(item, ast.AST):
            live.append(item)
            if isinstance(item, ast.Return | ast.Raise):
                break
    return live


def _dead_branch(test: ast.expr) -> str:
    """The branch that a constant condition cuts off; empty for any other condition."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        dead = {_dead_branch(part) for part in test.values}
        return "body" if "body" in dead else ""
    if not isinstance(test, ast.Constant):
        return ""
    return "orelse" if test.value else "body"
