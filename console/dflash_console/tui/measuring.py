"""Measurements in progress: they belong to the app, so that leaving the audit screen does not end them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from textual.app import App
from textual.worker import Worker

from dflash_backend.audit.measurement import Progress
from dflash_backend.core.errors import ConsoleError
from dflash_console.tui.services import Services

_log = logging.getLogger("dflash_console.tui")


class Measuring:
    """At most one measurement for each server."""

    def __init__(self, app: App[int], services: Services, changed: Callable[[], None]) -> None:
        self._app = app
        self._services = services
        self._changed = changed
        self._progress: dict[str, Progress] = {}
        self._workers: dict[str, Worker[None]] = {}
        self._problems: dict[str, ConsoleError] = {}

    def progress(self, server: str) -> Progress | None:
        """How far a measurement is; None when none runs."""
        return self._progress.get(server)

    def problem(self, server: str) -> ConsoleError | None:
        """Why the newest measurement came to nothing."""
        return self._problems.get(server)

    def start(self, server: str, *, force: bool = False) -> None:
        """Measures in the background."""
        self._problems.pop(server, None)
        self._progress[server] = Progress(done=0, total=0)
        self._workers[server] = self._app.run_worker(
            self._run(server, force), name=f"measure {server}", group=f"measure-{server}", exit_on_error=False
        )

    def stop(self, server: str) -> None:
        """Gives a measurement up; the server goes on as before."""
        worker = self._workers.get(server)
        if worker is not None:
            worker.cancel()

    async def _run(self, server: str, force: bool) -> None:
        assert self._services.audit is not None
        try:
            async for item in self._services.audit.measure(server, force=force):
                if isinstance(item, Progress):
                    self._progress[server] = item
                self._changed()
        except asyncio.CancelledError:
            self._problems[server] = ConsoleError("the measurement was given up", where=server)
            raise
        except ConsoleError as error:
            self._problems[server] = error
        except Exception as error:
            _log.exception("measuring %s failed inside", server)
            text = f"internal error ({type(error).__name__}); the console's log has the details"
            self._problems[server] = ConsoleError(text, where=server)
        finally:
            self._progress.pop(server, None)
            self._changed()
