"""The screens, over the configured hosts: what ``dflash-console`` without a command shows."""

from __future__ import annotations

import argparse

from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.screens import demand_terminal, show


async def run(args: argparse.Namespace, context: Context) -> int:
    """Runs until quit. Servers go on."""
    demand_terminal(context)
    from dflash_backend.control.plane import control_plane
    from dflash_console.tui.app import DflashApp
    from dflash_console.wiring import live_services

    context.left = "servers go on as they are"
    async with control_plane(context.inventory, read_only=context.read_only) as plane:
        return await show(DflashApp(live_services(plane)))


COMMAND = Leaf(help="the screens", run=run)
