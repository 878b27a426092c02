"""Ctrl-C, SIGTERM and SIGHUP: one orderly end for all three, whatever the command is doing.

Left alone, SIGTERM and SIGHUP end a process without a word, and a second Ctrl-C tears an event loop out of
its own cleaning up. Here the first signal asks the command to end, the second one says that it is at it, and
only the third one ends it in the middle.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = "still ending in order; once more ends at once and may leave things behind"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def handled(handler: Handler = _interrupt) -> Iterator[None]:
    """Within it all three signals come to ``handler``, by default as KeyboardInterrupt.

    A signal that is ignored stays ignored: ``nohup`` and background jobs of a shell rely on that. Outside the
    main thread, which alone gets signals, nothing is changed.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            found = signal.getsignal(number)
            # None: a handler that was not installed from Python, and could not be put back.
            if found not in (signal.SIG_IGN, None):
                before[number] = found
                signal.signal(number, handler)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


def run(work: Coroutine[Any, Any, int], say: Callable[[str], None]) -> int:
    """Runs ``work`` in an event loop. Raises KeyboardInterrupt after a signal, once ``work`` has cleaned up.

    ``say`` gets a line for people when a second signal comes while it still does.
    """
    # Imported here: most commands have no use for it, and it takes longer than all of them.
    import asyncio

    signals = 0
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)

        def told(number: int, frame: FrameType | None) -> None:
            nonlocal signals
            signals += 1
            if task.done() or signals > 2:
                raise KeyboardInterrupt
            if signals == 1:
                # From the loop itself: a handler runs between any two instructions.
                loop.call_soon_threadsafe(task.cancel)
            else:
                say(ENDING)

        with handled(told):
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                # By a signal, or by a command that lost its terminal.
                raise KeyboardInterrupt from None
            finally:
                # What is left in the loop, a thread that looks up a name, ends under the same rules.
                runner.close()
