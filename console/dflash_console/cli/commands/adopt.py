"""``adopt``: take over a server that somebody else started on a configured port."""

from __future__ import annotations

import argparse

from dflash_backend.control.contract import Action
from dflash_console.cli.acting import act, add_confirmation
from dflash_console.cli.command import Context, Leaf


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``adopt``."""
    parser.add_argument("server")
    add_confirmation(parser)


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 4 when the process behind the port cannot be identified."""
    return await act(Action.ADOPT, args, context)


COMMAND = Leaf(
    help="make a foreign server ours: it can be stopped from here then", run=run, configure=configure
)
