"""The window audit of one server as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import ServerSnapshot
from dflash_console.tui.actions import AUDIT
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen, paragraphs


class AuditScreen(ConsoleScreen):
    """Asks for the report once, on opening."""

    WHERE = AUDIT
    CSS_PATH = "audit.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(AUDIT)]
    AUTO_FOCUS = "#audit-panel"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server_name = server
        self._lines: tuple[str, ...] = ()

    def compose_body(self) -> Iterable[Widget]:
        """One panel."""
        with VerticalScroll(id="audit-panel", classes="panel", can_focus=True):
            yield Static("asking …", id="audit", markup=False)

    def on_ready(self) -> None:
        """Asks."""
        self.console_app.background(self, self._ask, "audit", group="audit")

    def title_text(self) -> str:
        """What is audited."""
        return f"audit of {self.server_name}"

    async def _ask(self) -> None:
        assert self.services.audit is not None
        try:
            self._lines = await self.services.audit.report(self.server_name)
        except ConsoleError as error:
            self._lines = error.lines()
        lines: list[Pieces] = [((line, "text"),) for line in self._lines]
        self.query_one("#audit", Static).update(paragraphs(lines))

    def target_server(self) -> ServerSnapshot | None:
        """The server."""
        return self.console_app.snapshot.server(self.server_name)

    def do_copy(self, context: Context) -> None:
        """The report."""
        self.console_app.copy("\n".join(self._lines), "the report")
