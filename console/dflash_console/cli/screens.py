"""The screens as part of a command: what a signal, or the loss of the terminal, means to them."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dflash_backend.core.errors import UsageError

if TYPE_CHECKING:
    from dflash_console.cli.command import Context
    from dflash_console.tui.app import DflashApp

LOOK_MS = 500


def demand_terminal(context: Context) -> None:
    """Raises UsageError where screens cannot be drawn, or JSON was asked for: before anything is started."""
    where = "the screens"
    step = "for programs: dflash-console status --json, or demo --headless"
    if context.out.as_json:
        raise UsageError("screens are no JSON", where=where, next_step=step)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("they need a terminal on standard input and output", where=where, next_step=step)


async def show(app: DflashApp) -> int:
    """Runs the screens until the user quits; the exit code. A signal ends them as it ends any command.

    Textual gives the terminal back when its task is cancelled, and then returns as if the user had quit.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    with terminal_watched(lambda: loop.call_soon_threadsafe(task.cancel)):
        await app.run_async()
    if task.cancelling():
        raise asyncio.CancelledError
    return app.return_code or 0


@contextmanager
def terminal_watched(gone: Callable[[], object]) -> Iterator[None]:
    """Calls ``gone``, in a thread of its own, when the terminal goes away.

    SIGHUP tells that only to the leader of the terminal's own session; without it Textual's threads would
    wait for ever, or spin. From then on what is written to the terminal goes nowhere.
    """
    done = threading.Event()
    if not sys.stdin.isatty():
        yield
        return
    poller = select.poll()
    poller.register(sys.stdin.fileno(), 0)

    def watch() -> None:
        while not done.is_set():
            if any(event & (select.POLLHUP | select.POLLNVAL) for _, event in poller.poll(LOOK_MS)):
                _write_nowhere()
                gone()
                return

    threading.Thread(target=watch, name="terminal", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _write_nowhere() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        if _is_lost(number):
            os.dup2(nothing, number)
    os.close(nothing)


def _is_lost(number: int) -> bool:
    poller = select.poll()
    poller.register(number, 0)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll(0))
