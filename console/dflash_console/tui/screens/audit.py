"""The window audit of one server: verdict, the layers as a picture, what to do, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.audit.badges import Entry
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_console.tui import auditview
from dflash_console.tui import figures as fig
from dflash_console.tui.actions import AUDIT
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.look import STATE_GLYPHS
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen, paragraphs
from dflash_console.tui.widgets.lines import Lines

_BASIS = {
    "running": "what runs now",
    "run": "the newest run; the server does not run",
    "profile": "what would be launched; the server does not run",
}


class AuditScreen(ConsoleScreen):
    """Shows what is kept; asks when nothing is. Reading it again and measuring are keys."""

    WHERE = AUDIT
    CSS_PATH = "audit.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(AUDIT)]
    AUTO_FOCUS = "#why-panel"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server_name = server
        self._asking = False
        self._shown: object = None

    def compose_body(self) -> Iterable[Widget]:
        """Verdict, layers, and the rest to scroll through."""
        yield Lines(id="verdict")
        with VerticalScroll(id="layers-panel", classes="panel", can_focus=False):
            yield Lines(id="layers")
        with VerticalScroll(id="why-panel", classes="panel", can_focus=True):
            yield Static("asking …", id="why", markup=False)

    def on_ready(self) -> None:
        """Asks, unless it is known."""
        if self.entry is None or self.entry.audit is None:
            self._ask(fresh=False)

    @property
    def entry(self) -> Entry | None:
        """What is kept of this server."""
        return self.services.audit.entry(self.server_name) if self.services.audit is not None else None

    def title_text(self) -> str:
        """What is audited."""
        return f"audit of {self.server_name}"

    def summary_text(self, snapshot: Snapshot) -> str:
        """State, what the audit is about, and how old it is."""
        server, entry = snapshot.server(self.server_name), self.entry
        parts = []
        if server is not None:
            parts.append(f"{STATE_GLYPHS[server.state][0]} {server.state}")
        if entry is not None and entry.audit is not None:
            if entry.audit.basis != "running":
                parts.append(_BASIS[entry.audit.basis])
            parts.append(entry.audit.profile or "no profile")
        if entry is not None:
            parts.append(f"read {fig.age(entry.at, self.services.clock(), always=True)} ago")
        return " · ".join(parts)

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Everything that has changed."""
        server, entry = snapshot.server(self.server_name), self.entry
        width = max(40, self.query_one("#why-panel").content_size.width - 2)
        live = self._live_line(server)
        key = (entry, width, live, self._asking)
        if key == self._shown:
            return
        self._shown = key
        panel = self.query_one("#layers-panel")
        report = entry.audit.report if entry is not None and entry.audit is not None else None
        if entry is None:
            self.query_one("#verdict", Lines).show([(("◐ ", "accent"), ("reading the server …", "text"))])
        else:
            head = auditview.verdict_lines(entry, max(40, self.size.width - 4))
            self.query_one("#verdict", Lines).show([*head, *((live,) if live else ())])
            self.query_one("#why", Static).update(paragraphs(auditview.why_lines(entry, width)))
        panel.display = report is not None and bool(report.layers)
        if report is not None:
            settings = server.settings if server is not None else None
            reach = settings.context_length if settings is not None and settings.context_length else None
            self.console_app.set_title(panel, "drafter layers · how far back each one looks, log scale")
            lines = auditview.layer_lines(
                report.layers, max(40, self.size.width - 4), reach or auditview.REACH
            )
            self.query_one("#layers", Lines).show(lines)

    def _live_line(self, server: ServerSnapshot | None) -> Pieces:
        """What goes on: a measurement, its failure, or the accept length of now."""
        if self._asking:
            return (("  ◐ ", "accent"), ("reading the server again …", "text"))
        measuring = self.console_app.measuring
        progress = measuring.progress(self.server_name)
        if progress is not None:
            done = f"{progress.done}/{progress.total} requests" if progress.total else "beginning"
            share = progress.done / progress.total if progress.total else 0.0
            bar = fig.bar(share, 20)
            return (("  ◐ ", "accent"), ("measuring  ", "strong"), (bar, "accent"), (f"  {done}", "text"))
        problem = measuring.problem(self.server_name)
        if problem is not None:
            return (("  ⚑ ", "warn"), ("not measured: ", "warn"), (" · ".join(problem.lines()), "text"))
        figures = server.figures if server is not None else None
        if figures is not None and figures.accept_length is not None:
            role = "bad" if server is not None and fig.has_gap(server) else "strong"
            return (("  accept length now  ", "dim"), (fig.number(figures.accept_length, 2), role))
        return ()

    def _ask(self, *, fresh: bool) -> None:
        if self._asking:
            return
        self._asking = True

        async def ask() -> None:
            assert self.services.audit is not None
            try:
                await self.services.audit.audit(self.server_name, fresh=fresh)
            except ConsoleError as error:
                if self.entry is None or self.entry.audit is not None:
                    raise  # Nothing on the screen would say it.
                self.log.debug(error.what)
            finally:
                self._asking = False
                self.repaint()

        self.console_app.background(self, ask, f"audit of {self.server_name}", group="audit", exclusive=True)

    def target_server(self) -> ServerSnapshot | None:
        """The server."""
        return self.console_app.snapshot.server(self.server_name)

    def target_host(self) -> LinkStatus | None:
        """Its host."""
        server = self.target_server()
        return self.console_app.host(server.host) if server else None

    def do_copy(self, context: Context) -> None:
        """The remedy; the whole report when there is nothing to do."""
        entry = self.entry
        if entry is None:
            self.console_app.tell("there is nothing to copy yet", "warning")
            return
        remedy = auditview.remedy_text(entry.audit.report) if entry.audit is not None else ""
        self.console_app.copy(
            remedy or auditview.plain_lines(entry), "the remedy" if remedy else "the report"
        )

    def do_audit_refresh(self, context: Context) -> None:
        """Reads it again."""
        self._ask(fresh=True)
        self.repaint()

    def do_measure(self, context: Context) -> None:
        """Asks, then measures; stops a measurement that runs."""
        if self.console_app.measuring.progress(self.server_name) is not None:
            self.console_app.measuring.stop(self.server_name)
            return

        async def confirm() -> None:
            from dflash_console.tui.screens.confirm import AskScreen

            lines: list[Pieces] = [
                (("Accept length against context length, below and above the window:", "text"),),
                (("some 50 requests with real text, a minute or several.", "text"),),
                (
                    (
                        "They take part of the server while it lasts. It is refused while others use it.",
                        "text",
                    ),
                ),
            ]
            if await self.app.push_screen_wait(AskScreen(f"measure {self.server_name}?", lines, "measure")):
                self.console_app.measuring.start(self.server_name)

        self.console_app.background(self, confirm, "measure", group="measure-ask", exclusive=True)
