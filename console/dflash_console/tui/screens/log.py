"""The log of one server on the whole screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from dflash_backend.core.samples import ServerSnapshot, Snapshot
from dflash_console.tui.actions import LOG
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.screens.logactions import LogActions
from dflash_console.tui.widgets.logpanel import LogPanel


class LogScreen(LogActions):
    """Nothing but the log."""

    WHERE = LOG
    CSS_PATH = "log.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(LOG)]
    AUTO_FOCUS = "#log"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server_name = server

    def compose_body(self) -> Iterable[Widget]:
        """The panel."""
        yield LogPanel(self.server_name, id="log-panel")

    def title_text(self) -> str:
        """The server's name."""
        return f"log of {self.server_name}"

    def summary_text(self, snapshot: Snapshot) -> str:
        """State and run."""
        server = snapshot.server(self.server_name)
        if server is None:
            return ""
        return " · ".join(p for p in (str(server.state), server.run.run_id if server.run else "") if p)

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """The log paints itself."""
        server = snapshot.server(self.server_name)
        if server is not None:
            self.log_panel.run_is(server.run.run_id if server.run else None)

    def target_server(self) -> ServerSnapshot | None:
        """The server."""
        return self.console_app.snapshot.server(self.server_name)
