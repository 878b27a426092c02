"""``inspect``: reads one captured file offline with the same readers that watch a live server."""

from __future__ import annotations

import argparse
import json

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
        out.line(f"  {name}: {_short(value)}")
    for note in report.notes:
        out.line(f"  note: {note}")
    if report.rows:
        shown = report.rows[: max(0, args.rows)]
        out.line(f"  {len(report.rows)} rows" + (f", the first {len(shown)}:" if shown else ""))
        for row in shown:
            out.line("    " + "  ".join(f"{k}={_short(v)}" for k, v in row.items() if v is not None))
    return 0


def _short(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:199] + "…"
    text = json.dumps(value, ensure_ascii=False)
    return "–" if value is None else text if len(text) <= 200 else text[:199] + "…"


COMMAND = Leaf(help="read a captured log, metrics or server-info file offline", run=run, configure=configure)
