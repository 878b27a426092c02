"""A question at the terminal, answered by a typed yes."""

from __future__ import annotations

import sys

from dflash_console.cli.interrupts import handled


def typed_yes() -> bool:
    """Reads one line; only ``yes`` is a yes. Ctrl-C raises KeyboardInterrupt at once, also in an event loop.

    The loop's own handler would only ask the task to end, which a blocking read never notices.
    """
    with handled():
        return sys.stdin.readline().strip().lower() == "yes"
