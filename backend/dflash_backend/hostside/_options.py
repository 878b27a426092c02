"""The command line options of an SGLang installation, read from its source text; nothing is imported or run.

Up to 0.5.15 they are ``parser.add_argument("--name", …)``; later most are fields of annotated dataclasses,
in ``server_args.py`` and from 0.5.20 in ``arg_groups/fields``: ``name: A[type, …]``, hidden with
``no_cli=True``.
"""

from __future__ import annotations

import ast
import glob
import os

MAX_FILE = 4 << 20
WRAPPERS = ("A", "Annotated")


def read_options(package: str) -> tuple[list[str], str]:
    """(names without dashes, sorted; what is wrong, or ""). ``package``: the folder ``sglang``."""
    files = [os.path.join(package, "srt", "server_args.py")]
    files += sorted(glob.glob(os.path.join(glob.escape(package), "srt", "arg_groups", "fields", "*.py")))
    found: set[str] = set()
    for path in files:
        try:
            if os.path.getsize(path) > MAX_FILE:
                return [], path + " is too large to be SGLang's"
            with open(path, encoding="utf-8") as stream:
                tree = ast.parse(stream.read())
        except OSError as error:
            return [], f"{path}: {error.strerror}"
        except (SyntaxError, ValueError) as error:
            return [], f"{path}: {error}"
        found |= options_of(tree)
    return sorted(found), ""


def options_of(tree: ast.AST) -> set[str]:
    """The options that one source file declares."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            found |= _dashed(node.args)
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found |= _field_options(field.target.id, field.annotation)
    return found


def _field_options(name: str, annotation: ast.AST) -> set[str]:
    if not isinstance(annotation, ast.Subscript) or getattr(annotation.value, "id", "") not in WRAPPERS:
        return set()
    keywords = {node.arg: node.value for node in ast.walk(annotation) if isinstance(node, ast.keyword)}
    if getattr(keywords.get("no_cli"), "value", False) is True or "Callable" in ast.dump(annotation):
        return set()
    own = _dashed([keywords["cli_name"]]) if "cli_name" in keywords else {name.replace("_", "-")}
    return own | _dashed(getattr(keywords.get("aliases"), "elts", []))


def _dashed(nodes: list[ast.expr]) -> set[str]:
    values = [getattr(node, "value", None) for node in nodes]
    return {value[2:] for value in values if isinstance(value, str) and value.startswith("--")}
