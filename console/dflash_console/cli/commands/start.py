"""``start``: launch a server with its profile, or another, and wait until it is ready."""

from __future__ import annotations

import argparse

from dflash_backend.control.contract import Action
from dflash_console.cli.acting import act, add_confirmation
from dflash_console.cli.command import Context, Leaf


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``start``."""
    parser.add_argument("server")
    parser.add_argument("--profile", metavar="P", help="default: the server's own")
    add_confirmation(parser)


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 5 when it did not get ready: it is stopped again then."""
    return await act(Action.START, args, context, profile=args.profile)


COMMAND = Leaf(help="launch a server and wait until it is ready", run=run, configure=configure)
