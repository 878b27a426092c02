"""``stop``: end a server of ours, and prove that it is gone."""

from __future__ import annotations

import argparse

from dflash_backend.control.contract import Action
from dflash_console.cli.acting import act, add_confirmation, add_drain
from dflash_console.cli.command import Context, Leaf


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``stop``."""
    parser.add_argument("server")
    add_drain(parser)
    add_confirmation(parser)


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 4 for a server that is not ours, 5 when something of it could not be ended."""
    return await act(Action.STOP, args, context)


COMMAND = Leaf(help="end a server that this console started", run=run, configure=configure)
