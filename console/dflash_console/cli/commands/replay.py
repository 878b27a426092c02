"""``replay``: watch a recording again, on the screens or as JSON lines."""

from __future__ import annotations

import argparse

from dflash_console.cli.command import Context, Leaf, path_argument
from dflash_console.cli.screens import demand_terminal, show


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``replay``."""
    parser.add_argument("file", type=path_argument)
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="2 plays twice as fast")


async def run(args: argparse.Namespace, context: Context) -> int:
    """With ``--json``: every snapshot at once, as ``status --watch`` printed it."""
    context.left = "a replay changes nothing"
    if context.out.as_json:
        from dflash_backend.telemetry.record import Recording
        from dflash_backend.telemetry.snapshot_json import snapshot_to_json

        recording = Recording(args.file)
        for snapshot in recording.snapshots():
            context.out.event(snapshot_to_json(snapshot))
        for problem in recording.problems:
            context.out.note(problem)
        return 0
    demand_terminal(context)
    from dflash_backend.telemetry.replay import Replay

    replay = Replay(args.file, speed=args.speed)
    from dflash_console.tui.app import DflashApp
    from dflash_console.wiring import replay_services

    await replay.start()
    try:
        inventory = context.inventory
        app = DflashApp(replay_services(replay, ascii_only=inventory.ascii, theme=inventory.theme))
        return await show(app)
    finally:
        await replay.close()


COMMAND = Leaf(help="watch a recording again", run=run, configure=configure)
