"""``inspect``: reads one captured file offline with the same readers that watch a live server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from dflash_console.cli.command import Context, Leaf, path_argument


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``inspect``."""
    parser.add_argument("file", type=path_argument)
    parser.add_argument("--kind", help="what the file is: log, metrics, server-info, …")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="rows to show (default 10)")


def run(args: argparse.Namespace, context: Context) -> int:
    """Prints the report."""
    from dflash_backend.sglang.inspect import inspect_file

    report = inspect_file(args.file, args.kind)
    out = context.out
    if out.as_json:
        out.document(report.to_json())
        return 0
    out.line(f"{report.path}: {report.kind}, {report.size} bytes")
    for name, value in report.summary.items():
        if (told := _told(value)) is not None:
            out.line(f"  {name}: {_short(told)}")
    for note in report.notes:
        out.line(f"  note: {note}")
    if report.rows:
        shown = report.rows[: max(0, args.rows)]
        out.line(f"  {len(report.rows)} rows" + (f", the first {len(shown)}:" if shown else ""))
        for told in map(_told, shown):
            if not isinstance(told, dict):
                continue
            out.line("    " + "  ".join(f"{k}={_short(v)}" for k, v in told.items()))
    return 0


def _told(value: object) -> object:
    """``value`` for people: without what is unknown or empty, figures short. None: nothing is left."""
    if isinstance(value, Mapping):
        return {k: told for k, v in value.items() if (told := _told(v)) is not None} or None
    if isinstance(value, list | tuple):
        return [_told(item) for item in value] or None
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return None if value == "" else value


def _short(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:199] + "…"
    text = json.dumps(value, ensure_ascii=False)
    return "–" if value is None else text if len(text) <= 200 else text[:199] + "…"


COMMAND = Leaf(help="read a captured log, metrics or server-info file offline", run=run, configure=configure)
