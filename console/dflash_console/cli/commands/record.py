"""``record``: keep what the console sees in a file."""

from __future__ import annotations

import argparse

from dflash_console.cli.command import Context, Leaf, path_argument
from dflash_console.cli.live import watching


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``record``."""
    parser.add_argument("file", type=path_argument)
    parser.add_argument("--for", dest="seconds", type=float, metavar="S", help="default: until interrupted")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME", help="default: all; repeatable"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")


async def run(args: argparse.Namespace, context: Context) -> int:
    """One JSON line a second; the file is readable at any moment."""
    from dflash_backend.telemetry.record import record

    context.left = f"{args.file} holds what was recorded until now"
    async with watching(context, args.server, settle=False, audits=True) as plane:
        count = await record(plane.fleet, args.file, seconds=args.seconds, overwrite=args.force)
    if context.out.as_json:
        context.out.document({"file": str(args.file), "snapshots": count})
    else:
        context.out.line(f"{count} snapshots in {args.file}")
    return 0


COMMAND = Leaf(help="keep what the console sees in a file", run=run, configure=configure)
