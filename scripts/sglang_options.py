#!/usr/bin/env python3
"""Derives the table of launch options from SGLang wheels, without importing or running them.

    sglang_options.py WHEEL... > backend/dflash_backend/sglang/options.json

Reads ``sglang/srt/server_args.py`` and ``sglang/srt/arg_groups/`` of each wheel as text and finds the
options in both forms that SGLang has used: ``parser.add_argument("--name", ...)`` and, since 0.5.14, record
fields annotated as ``A[type, Arg(...)]``. Only facts are kept: names, the kind of value, fixed choices,
what a deprecated spelling stands for, and from which release to which each of that holds.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

SOURCES = re.compile(r"sglang/srt/(server_args\.py|arg_groups/.*\.py)$")
FLAG_ACTIONS = {"store_true", "store_false", "DeprecatedAction", "DeprecatedStoreTrueAction"}
VALUE_KINDS = {"int": "int", "float": "float", "human_readable_int": "count"}
Spec = dict[str, Any]


def version_key(text: str) -> tuple[int, ...]:
    """Sorts 0.5.12 before 0.5.12.post1 before 0.5.13."""
    return tuple(int(n) for n in re.findall(r"\d+", text))


def dotted(node: ast.expr | None) -> str:
    """The last part of a name or attribute, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


class Constants:
    """Lists and strings assigned at module level, so that ``choices=NAME`` can be read."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.nodes: dict[str, ast.expr] = {}
        for tree in trees:
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.nodes[node.targets[0].id] = node.value
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                    self.nodes[node.target.id] = node.value

    def choices(self, node: ast.expr | None) -> list[Any] | None:
        """The literal list behind ``node``; None when it is only known at run time."""
        if isinstance(node, ast.Name):
            return self.choices(self.nodes.get(node.id))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.choices(node.left), self.choices(node.right)
            return None if left is None or right is None else left + right
        if isinstance(node, ast.List | ast.Tuple):
            parts = [self.element(item) for item in node.elts]
            return None if any(part is None for part in parts) else [p for part in parts for p in part or ()]
        return None

    def element(self, node: ast.expr) -> list[Any] | None:
        if isinstance(node, ast.Constant):
            return [node.value]
        if isinstance(node, ast.Starred):
            return self.choices(node.value)
        if isinstance(node, ast.Name) and isinstance(self.nodes.get(node.id), ast.Constant):
            return [self.nodes[node.id].value]  # type: ignore[attr-defined]
        return None


def value_kind(name: str) -> str:
    """int, count, float, str or json for the name of a type or of a parsing function."""
    if name in VALUE_KINDS:
        return VALUE_KINDS[name]
    return "json" if "json" in name or name == "loads" else "str"


def from_call(call: ast.Call, constants: Constants) -> tuple[list[str], Spec] | None:
    """The names and facts of one ``add_argument`` call; None for positionals and computed names."""
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    longs = [n for n in names if n.startswith("--")]
    if not longs or len(names) != len(call.args):
        return None
    words = {k.arg: k.value for k in call.keywords if k.arg}
    action = words.get("action")
    action_name = action.value if isinstance(action, ast.Constant) else dotted(action)
    nargs = words["nargs"].value if isinstance(words.get("nargs"), ast.Constant) else None  # type: ignore[attr-defined]
    spec: Spec = {"field": longs[0][2:].replace("-", "_")}
    if isinstance(words.get("dest"), ast.Constant):
        spec["field"] = words["dest"].value  # type: ignore[attr-defined]
    describe(spec, words, constants, action_name or "", nargs, value_kind(dotted(words.get("type")) or "str"))
    return longs, spec


def describe(
    spec: Spec, words: dict[str, ast.expr], constants: Constants, action: str, nargs: Any, kind: str
) -> None:
    """Fills kind, choices and deprecation, which both forms of declaration share."""
    if action == "BooleanOptionalAction":
        spec["kind"] = "toggle"
    elif action in FLAG_ACTIONS or (action == "DeprecatedStoreConstAction" and "nargs" not in words):
        spec["kind"] = "flag"
    elif action == "LoRAPathAction" or nargs in ("+", "*"):
        spec["kind"] = f"list-{kind}"
    elif nargs == "?":
        spec["kind"] = f"optional-{kind}"
    else:
        spec["kind"] = kind
    choices = constants.choices(words.get("choices"))
    if choices:
        spec["choices"] = choices
    new = words.get("new_flag")
    if action.startswith("Deprecated"):
        spec["deprecated"] = new.value if isinstance(new, ast.Constant) and new.value else True
    if "error_message" in words:
        spec["retired"] = True  # still parsed, but only to stop the launch with an explanation
    if dotted(words.get("help")) == "SUPPRESS":
        spec["hidden"] = True


def from_field(node: ast.AnnAssign, constants: Constants) -> tuple[list[str], Spec] | None:
    """The names and facts of one ``name: A[type, Arg(...)]`` field; None when it is no option."""
    annotation = node.annotation
    if not (
        isinstance(node.target, ast.Name)
        and isinstance(annotation, ast.Subscript)
        and dotted(annotation.value) in ("A", "Annotated")
        and isinstance(annotation.slice, ast.Tuple)
    ):
        return None
    base, *metadata = annotation.slice.elts
    words: dict[str, ast.expr] = {}
    is_option = False
    for item in metadata:
        if isinstance(item, ast.Call) and dotted(item.func) == "Arg":
            words |= {k.arg: k.value for k in item.keywords if k.arg}
            is_option = True
        elif isinstance(item, ast.Constant | ast.JoinedStr) or (
            isinstance(item, ast.BinOp) and isinstance(item.op, ast.Add)
        ):
            is_option = True  # a bare help text
    no_cli = words.get("no_cli")
    if not is_option or (isinstance(no_cli, ast.Constant) and no_cli.value):
        return None
    cli_name = words.get("cli_name")
    field = node.target.id
    longs = [cli_name.value if isinstance(cli_name, ast.Constant) else "--" + field.replace("_", "-")]
    if isinstance(words.get("aliases"), ast.List):
        longs += [a.value for a in words["aliases"].elts if isinstance(a, ast.Constant)]  # type: ignore[attr-defined]
    text = ast.unparse(base)
    inner = re.sub(r"^Optional\[(.*)\]$", r"\1", text).replace(" | None", "").replace("None | ", "")
    action = words.get("action")
    action_name = action.value if isinstance(action, ast.Constant) else dotted(action)
    parser = dotted(words.get("type_parser"))
    nargs = words["nargs"].value if isinstance(words.get("nargs"), ast.Constant) else None  # type: ignore[attr-defined]
    element = re.match(r"[Ll]ist\[(\w+)\]$", inner)
    if inner.startswith("Literal["):
        literal = ast.parse(inner, mode="eval").body
        assert isinstance(literal, ast.Subscript)
        words.setdefault("choices", literal.slice)
        kind = "str"
    elif element and not parser:
        kind, nargs = value_kind(element[1]), nargs or "+"
    else:
        kind = value_kind(parser or inner)
    if inner == "bool" and not action_name:
        action_name = "store_true"
    # Keywords of a custom action are given as one dictionary.
    extra = words.get("action_kwargs")
    if isinstance(extra, ast.Dict):
        for key, value in zip(extra.keys, extra.values, strict=True):
            if isinstance(key, ast.Constant):
                words.setdefault(str(key.value), value)
        if isinstance(words.get("nargs"), ast.Constant):
            nargs = words["nargs"].value  # type: ignore[attr-defined]
        if dotted(words.get("type")):
            kind = value_kind(dotted(words["type"]))
    spec: Spec = {"field": field}
    describe(spec, words, constants, action_name or "", nargs, kind)
    return [n for n in longs if n.startswith("--")], spec


def declarations(trees: list[ast.Module], constants: Constants) -> Iterator[tuple[list[str], Spec]]:
    """Every option declared in these files."""
    for tree in trees:
        for node in ast.walk(tree):
            found = None
            if isinstance(node, ast.AnnAssign):
                found = from_field(node, constants)
            elif isinstance(node, ast.Call) and dotted(node.func) == "add_argument":
                found = from_call(node, constants)
            if found and found[0]:
                yield found


def read_wheel(path: str) -> tuple[str, dict[str, Spec]]:
    """(version, option name without dashes -> facts) of one wheel."""
    with zipfile.ZipFile(path) as wheel:
        sources = [n for n in wheel.namelist() if SOURCES.match(n)]
        trees = [ast.parse(wheel.read(name)) for name in sources]
    constants = Constants(trees)
    options: dict[str, Spec] = {}
    for names, spec in declarations(trees, constants):
        main, *others = (name[2:] for name in names)
        options[main] = spec
        for other in others:
            options[other] = {**spec, "alias": main}
    version = re.search(r"(?:^|/)sglang-([^-/]+)-[^/]*$", path)
    if version is None:
        raise SystemExit(f"{path}: not the name of an sglang wheel")
    return version[1], options


def main() -> None:
    """Prints the table as JSON, one option a line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("wheels", nargs="+")
    tables = dict(read_wheel(path) for path in parser.parse_args().wheels)
    releases = sorted(tables, key=version_key)
    table: dict[str, list[Spec]] = {}
    for name in sorted({option for options in tables.values() for option in options}):
        segments: list[Spec] = []
        previous: Spec | None = None
        for release in releases:
            spec = tables[release].get(name)
            if spec is not None and spec == previous:
                segments[-1]["last"] = release
            elif spec is not None:
                kept = {k: v for k, v in spec.items() if not (k == "field" and v == name.replace("-", "_"))}
                segments.append({"first": release, "last": release, **kept})
            previous = spec
        table[name] = segments
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in table)
    sys.stdout.write(f'{{\n"releases": {json.dumps(releases)},\n"options": {{\n{lines}\n}}\n}}\n')


if __name__ == "__main__":
    main()
