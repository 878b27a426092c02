"""``apply``: switch a server to a profile, and show what was granted of what was asked."""

from __future__ import annotations

import argparse

from dflash_backend.control.contract import Action
from dflash_console.cli.acting import act, add_confirmation, add_drain
from dflash_console.cli.command import Context, Leaf


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``apply``."""
    parser.add_argument("server")
    parser.add_argument("--profile", metavar="P", required=True)
    parser.add_argument("--live-only", action="store_true", help="refuse when it needs a restart")
    add_drain(parser)
    add_confirmation(parser)


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 6 when the old server was stopped and the new one did not get ready."""
    return await act(Action.APPLY, args, context, profile=args.profile)


COMMAND = Leaf(help="switch a server to a profile", run=run, configure=configure)
