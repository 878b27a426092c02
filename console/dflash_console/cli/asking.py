"""A question at the terminal, answered by a typed yes."""

from __future__ import annotations

import signal
import sys


def typed_yes() -> bool:
    """Reads one line; only ``yes`` is a yes. Ctrl-C raises KeyboardInterrupt at once, also inside asyncio.

    asyncio's own handler would only ask the task to end, which a blocking read never notices.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().lower() == "yes"
    finally:
        signal.signal(signal.SIGINT, before)
