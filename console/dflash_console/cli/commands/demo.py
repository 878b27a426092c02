"""``demo``: an embedded cluster on this machine, then the screens or, headless, JSON snapshots."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from typing import TYPE_CHECKING

from dflash_backend.core.errors import FailedError
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.live import once_a_second
from dflash_console.cli.screens import demand_terminal, show

if TYPE_CHECKING:
    from dflash_backend.control.plane import ControlPlane

NEEDED = ("numpy", "safetensors", "tokenizers")


CLEAN = "the demo's servers were stopped and its folder removed"
UNCLEAN = "not everything of the demo could be stopped; the next demo removes what is left"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``demo``."""
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="1 to 8 (default: 3)")
    parser.add_argument("--headless", action="store_true", help="no screens: JSON snapshots, one a line")
    parser.add_argument(
        "--for", dest="seconds", type=_seconds, default=20.0, metavar="S", help="headless: so long"
    )
    parser.add_argument("--no-load", action="store_true", help="send no requests")


async def run(args: argparse.Namespace, context: Context) -> int:
    """Everything is stopped and removed at the end, also after Ctrl-C."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FailedError(
            f"the demo's engine needs {', '.join(missing)}",
            unchanged="nothing was started",
            next_step="pip install 'dflash-sglang-console[engine]'",
        )
    if not args.headless:
        demand_terminal(context)
    context.began(UNCLEAN)

    def ended(gone: bool) -> None:
        context.left = CLEAN if gone else UNCLEAN
        if not gone:
            context.out.note(UNCLEAN)

    from dflash_backend.demo.session import demo_session

    # The option alone counts: a demo has nothing to do with the user's configuration, which may be broken.
    async with demo_session(
        args.servers, load=not args.no_load, read_only=context.read_only_asked, ended=ended
    ) as plane:
        if args.headless:
            return await headless(plane, args.seconds, context)
        from dflash_console.tui.app import DflashApp
        from dflash_console.wiring import live_services

        return await show(DflashApp(live_services(plane, label="demo")))


async def headless(plane: ControlPlane, seconds: float, context: Context) -> int:
    """One snapshot a second; exit 5 when a server was not ready at the end."""
    from dflash_backend.core.states import ServerState
    from dflash_backend.telemetry.snapshot_json import snapshot_to_json

    snapshot = plane.fleet.snapshot()
    try:
        async with asyncio.timeout(seconds):
            async for snapshot in once_a_second(plane.fleet):
                context.out.event(snapshot_to_json(snapshot))
    except TimeoutError:
        pass
    late = [server for server in snapshot.servers if server.state is not ServerState.READY]
    for server in late:
        said = f": {server.message}" if server.message else ""
        context.out.note(f"{server.name} is {server.state} after {seconds:g} s{said}")
    return 5 if late else 0


COMMAND = Leaf(help="an embedded cluster on this machine, then the screens", run=run, configure=configure)
