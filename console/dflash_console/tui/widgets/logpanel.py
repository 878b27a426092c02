"""A panel that follows the log of one server, and what can be done with it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical

from dflash_backend.core.errors import ConsoleError, UsageError
from dflash_backend.core.paths import data_dir, write_atomic
from dflash_console.tui.widgets.logview import LogView

if TYPE_CHECKING:
    from dflash_console.tui.app import DflashApp

_AGAIN_S = 5.0


class LogPanel(Vertical):
    """Reads batches from the log source into a ``LogView``; begins again after a lost connection."""

    DEFAULT_CSS = """
    LogPanel { height: 1fr; }
    """

    def __init__(self, server: str, *, id: str | None = None) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id, classes="panel")
        self._server = server
        self._run_id: str | None = None
        self._new_run = asyncio.Event()
        self._words = "reading the log"
        self.view = LogView(id="log", empty="reading the log …")
        """The view inside."""

    @property
    def console_app(self) -> DflashApp:
        """The app, with its own type."""
        return cast("DflashApp", self.app)

    def compose(self) -> ComposeResult:
        """The view."""
        yield self.view

    def on_mount(self) -> None:
        """Begins to follow."""
        self._title()
        self.console_app.background(self, self._follow, f"log of {self._server}", group="log")

    def run_is(self, run_id: str | None) -> None:
        """Tells which run is shown elsewhere; a new one has a new log."""
        if run_id != self._run_id:
            if self._run_id is not None:
                self._new_run.set()
            self._run_id = run_id

    def on_log_view_changed(self, event: LogView.Changed) -> None:
        """Counts in the title."""
        event.stop()
        self._title()

    def _title(self) -> None:
        view = self.view
        self.console_app.set_title(
            self, f"log   {view.status}" + (f"   {self._words}" if self._words else "")
        )

    def _say(self, words: str) -> None:
        self._words = words
        self.view.set_empty(words or "no lines yet")
        self._title()

    async def _follow(self) -> None:
        while True:
            patience: float | None = None
            try:
                first = True
                async for batch in self.console_app.services.logs.follow(self._server):
                    if first:
                        # Only now, so that the old lines stay readable until there are new ones.
                        self.view.clear()
                        self._say("")
                        first = False
                    self.view.write(batch)
                    # A source that always has more must not keep the keys waiting.
                    await asyncio.sleep(0)
                self._say("the run is over")
            except UsageError as error:
                self._say(error.what)
            except ConsoleError as error:
                self._say(f"{error.what}; trying again")
                patience = _AGAIN_S
            try:
                await asyncio.wait_for(self._new_run.wait(), patience)
            except TimeoutError:
                continue
            self._new_run.clear()
            self.view.clear()

    def copy(self) -> None:
        """Copies what is marked with the mouse, else the lines that can be seen."""
        marked = self.screen.get_selected_text()
        if marked:
            self.console_app.copy(marked, "the marked text")
            return
        lines = self.view.visible_lines()
        if lines:
            self.console_app.copy("\n".join(lines), f"{len(lines)} lines on the screen")
        else:
            self.console_app.tell("there are no lines to copy", "warning")

    def save(self) -> None:
        """Writes the lines of the view (as filtered) to a file and says where."""
        lines = self.view.store.lines()
        if not lines:
            self.console_app.tell("there are no lines to save", "warning")
            return
        services = self.console_app.services
        folder = services.save_dir or data_dir() / "logs"
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(services.clock()))
        # The name of a server comes from a file the user may have got from somebody.
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in self._server).lstrip(".") or "server"
        path = folder / f"{name}-{stamp}.log"
        self.console_app.background(self, lambda: self._write(path, lines), "saving the log", group="save")

    async def _write(self, path: Path, lines: list[str]) -> None:
        try:
            await asyncio.to_thread(write_atomic, path, "\n".join(lines) + "\n")
        except OSError as error:
            self.console_app.notify(
                f"the log was not saved: {error.strerror}\nwhere: {path}\nnext: free space, or copy with y",
                severity="error",
                timeout=12,
            )
            return
        self.console_app.notify(f"{len(lines)} lines saved to {path}", timeout=10)
