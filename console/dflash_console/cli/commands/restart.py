"""``restart``: stop a server and launch it again with the profile it runs."""

from __future__ import annotations

import argparse

from dflash_backend.control.contract import Action
from dflash_console.cli.acting import act, add_confirmation, add_drain
from dflash_console.cli.command import Context, Leaf


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``restart``."""
    parser.add_argument("server")
    add_drain(parser)
    add_confirmation(parser)


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 6 when it was stopped and could not be started again."""
    return await act(Action.RESTART, args, context)


COMMAND = Leaf(help="stop a server and launch it again", run=run, configure=configure)
