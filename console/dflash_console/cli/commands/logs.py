"""``logs``: the log of a server's newest run, or of another one of its runs."""

from __future__ import annotations

import argparse
import re
from contextlib import aclosing

from dflash_backend.core.errors import UsageError
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.live import part_of

_SPAN = re.compile(r"(\d+)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def span(text: str) -> float:
    """``90``, ``90s``, ``10m``, ``2h``, ``1d`` in seconds, for argparse."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span: 90s, 10m, 2h, 1d")
    return float(int(match[1]) * _SECONDS[match[2]])


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``logs``."""
    parser.add_argument("server")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--since", type=span, metavar="SPAN", help="only lines of the last 10m, 2h, …")
    parser.add_argument("--run", metavar="ID", help="a run other than the newest")


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 2 when the server never had a run."""
    from dflash_backend.control.plane import control_plane

    context.left = "the server goes on; only watching its log has ended"
    inventory = part_of(context.inventory, [args.server])
    async with control_plane(inventory, read_only=context.read_only, watch=False) as plane:
        runs = plane.runs(inventory.servers[args.server].host)
        own = [one for one in await runs.list_runs() if one.server == args.server]
        chosen = next((one for one in own if args.run in (None, one.run_id)), None)
        if chosen is None:
            known = ", ".join(one.run_id for one in own[:5])
            raise UsageError(
                f"{args.server} has no run {args.run}" if args.run else f"{args.server} never had a run",
                next_step=f"its runs: {known}" if own else f"dflash-console start {args.server}",
            )
        lines = runs.follow_log(chosen.run_id, follow=args.follow, since_s=args.since)
        async with aclosing(lines):
            async for batch in lines:
                for line in batch:
                    if context.out.as_json:
                        context.out.event({"run": chosen.run_id, "line": line})
                    else:
                        context.out.line(line)
                context.out.flush()
    return 0


COMMAND = Leaf(help="the log of a server's run", run=run, configure=configure)
