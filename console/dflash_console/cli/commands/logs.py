"""``logs``: the log of a server's newest run, or of another one of its runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from dflash_backend.core.errors import UsageError
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.live import part_of

if TYPE_CHECKING:
    from dflash_backend.core.samples import RunStatus

LAST_BYTES = 65536
"""With ``-f``: so much of the log's end comes first."""
EVERYTHING = 2**62
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
        chosen = choose(await runs.list_runs(), args.server, args.run)
        if chosen.note:
            context.out.note(f"run {chosen.run_id}: {chosen.note}")
        lines = runs.follow_log(
            chosen.run_id,
            last_bytes=LAST_BYTES if args.follow else EVERYTHING,
            follow=args.follow,
            since_s=args.since,
        )
        async with aclosing(lines):
            async for batch in lines:
                for line in batch:
                    if context.out.as_json:
                        context.out.event({"run": chosen.run_id, "line": line})
                    else:
                        context.out.line(line)
                context.out.flush()
        if args.follow:
            tell_the_end(await runs.list_runs(), chosen, context)
    return 0


def choose(runs: Sequence[RunStatus], server: str, run_id: str | None) -> RunStatus:
    """The newest run of a server, or the one of that id. Raises UsageError when there is none.

    A damaged folder does not say whose it is: it is found by its id, and told when nothing else is there.
    """
    own = [one for one in runs if one.server == server]
    damaged = [one for one in runs if not one.server]
    if run_id is None and own:
        return own[0]
    for one in (*own, *damaged):
        if one.run_id == run_id:
            return one
    if own:
        step = f"its runs: {', '.join(one.run_id for one in own[:5])}"
    elif damaged:
        names = ", ".join(one.run_id for one in damaged[:5])
        step = f"runs whose folder is damaged may be its: --run {names}"
    else:
        step = f"dflash-console start {server}"
    what = f"{server} has no run {run_id}" if run_id else f"{server} never had a run"
    raise UsageError(what, next_step=step)


def tell_the_end(runs: Sequence[RunStatus], followed: RunStatus, context: Context) -> None:
    """Why there is nothing more to follow, and what runs now."""
    from dflash_backend.runs.rows import explain_exit

    now = next((one for one in runs if one.run_id == followed.run_id), None)
    why = "its folder is gone" if now is None else explain_exit(now) or now.note or "its log ended"
    context.out.note(f"run {followed.run_id} is over: {why}")
    newer = next((one for one in runs if one.server == followed.server), None)
    if followed.server and newer is not None and newer.run_id != followed.run_id:
        context.out.note(f"run {newer.run_id} began since: dflash-console logs {followed.server} -f")


COMMAND = Leaf(help="the log of a server's run", run=run, configure=configure)
