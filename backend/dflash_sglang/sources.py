"""Fingerprints of SGLang's source, taken from its files without importing them.

A name is ``module:Qualified.name``; its fingerprint is the first 16 digits of the SHA-256 of the
definition's source text (dedented, trailing blanks removed). ``releases.json`` beside this file has, for
every release this plugin knows, the signature and fingerprint of each name that is hooked or relied upon
there.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """A definition as found: its parameters as written, and its fingerprint."""

    signature: str
    fingerprint: str


def table() -> dict[str, dict[str, Source]]:
    """Known releases: release, then name, then source."""
    data = json.loads(resources.files(__package__).joinpath("releases.json").read_text(encoding="utf-8"))
    return {
        release: {name: Source(*entry) for name, entry in names.items()}
        for release, names in data["releases"].items()
    }


def installed_file(module: str) -> Path | None:
    """The file of a module of an installed package; imports nothing."""
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for name in ((*rest[:-1], f"{rest[-1]}.py"), (*rest, "__init__.py")):
            path = Path(folder, *name)
            if path.is_file():
                return path
    return None


def read(name: str, locate: Callable[[str], Path | None] = installed_file) -> Source | None:
    """The definition called ``name``; None when its file or the definition is not there."""
    module, _, qualified = name.partition(":")
    path = locate(module)
    if path is None or not path.is_file():
        return None
    text, node = _parsed(path)
    for part in qualified.split("."):
        node = next(
            (
                child
                for child in node.body
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and child.name == part
            ),
            None,
        )
        if node is None:
            return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    body = "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    lines = [line.rstrip() for line in textwrap.dedent(body).splitlines()]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return Source(_signature(node), digest)


@functools.lru_cache(maxsize=32)
def _parsed(path: Path) -> tuple[str, Any]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def _signature(node: ast.AST) -> str:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "class"
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [a.arg for a in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append("**" + arguments.kwarg.arg)
    return f"({', '.join(names)})"


def differences(
    known: dict[str, Source],
    names: Iterable[str],
    locate: Callable[[str], Path | None] = installed_file,
) -> list[str]:
    """Where the installed source is not the release's, in words; empty when all of ``names`` are as known."""
    found: list[str] = []
    for name in names:
        expected, actual = known.get(name), read(name, locate)
        if expected is None:
            found.append(f"{name}: not in this plugin's table")
        elif actual is None:
            found.append(f"{name}: not found")
        elif actual.signature != expected.signature:
            found.append(f"{name}: takes {actual.signature}, expected {expected.signature}")
        elif actual.fingerprint != expected.fingerprint:
            found.append(f"{name}: fingerprint {actual.fingerprint}, expected {expected.fingerprint}")
    return found
