"""One server: its charts on one time axis, memory, settings asked and granted, and the end of its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.profile import Profile
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState
from dflash_backend.telemetry.contract import Series
from dflash_console.tui import figures as fig
from dflash_console.tui.actions import SERVER
from dflash_console.tui.auditview import picture_lines
from dflash_console.tui.deciders import Context
from dflash_console.tui.history import SPANS, as_line, chart_end
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.look import STATE_GLYPHS
from dflash_console.tui.memorylines import memory_lines, memory_title
from dflash_console.tui.plot import Flag
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import paragraphs
from dflash_console.tui.screens.logactions import LogActions
from dflash_console.tui.settings import COLUMNS, settings_rows
from dflash_console.tui.widgets.bars import Line
from dflash_console.tui.widgets.chart import Chart
from dflash_console.tui.widgets.grid import Grid
from dflash_console.tui.widgets.lines import Lines
from dflash_console.tui.widgets.logpanel import LogPanel


class ServerScreen(LogActions):
    """Everything about one server that is not the whole log."""

    WHERE = SERVER
    CSS_PATH = "server.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(SERVER)]
    AUTO_FOCUS = "#log"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server_name = server
        self._span = 0
        self._said: tuple[Pieces, ...] = ()
        self._profile: tuple[str | None, Profile | None] = (None, None)

    def compose_body(self) -> Iterable[Widget]:
        """Message, charts and memory on the left, settings on the right, log below."""
        yield Static(id="message", markup=False)
        with Horizontal(id="upper"):
            with Vertical(id="left"):
                with Vertical(id="charts", classes="panel"):
                    yield Line(id="rate-line", classes="legend")
                    yield Chart(id="rate", time_axis=False, flag_row=True)
                    yield Line(id="accept-line", classes="legend")
                    yield Chart(id="accept")
                with Vertical(id="memory-panel", classes="panel"):
                    yield Lines(id="memory")
            with Vertical(id="settings-panel", classes="panel"):
                yield Grid(COLUMNS, id="settings", empty="not read yet")
                yield Lines(id="windows")
        yield LogPanel(self.server_name, id="log-panel")

    def title_text(self) -> str:
        """The server's name."""
        return self.server_name

    def summary_text(self, snapshot: Snapshot) -> str:
        """State, host, profile."""
        server = snapshot.server(self.server_name)
        if server is None:
            return "not in the configuration any more"
        glyph = STATE_GLYPHS[server.state][0]
        words = fig.state_note(server, self.services.clock()) or str(server.state)
        parts = [f"{glyph} {words}", f"{server.host}:{server.port}", server.profile or "no profile"]
        if age := fig.age(server.at, self.services.clock()):
            parts.append(f"age {age}")
        return " · ".join(parts)

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """All panels but the log, which paints itself."""
        server = snapshot.server(self.server_name)
        if server is None:
            return
        self.log_panel.run_is(server.run.run_id if server.run else None)
        self._paint_message(server, now)
        self._paint_charts(server, snapshot)
        self._paint_memory(server)
        self._paint_settings(server, now)

    def _paint_message(self, server: ServerSnapshot, now: float) -> None:
        lines: list[Pieces] = []
        job = self.console_app.jobs.of(server.name)
        if job is not None and job.running:
            lines.append((("◐ ", "accent"), (job.words(), "strong"), (f"   {job.where()}   g: steps", "dim")))
        if server.state is ServerState.FAILED:
            code = server.run.exit_code if server.run else None
            head = "failed" if code is None else f"failed, exit code {code}"
            lines.append((("✖ ", "bad"), (head, "bad"), (f"   {server.message}", "text")))
            tail = server.run.log_tail.splitlines()[-3:] if server.run else []
            lines += [(("  ", "dim"), (line, "dim")) for line in tail]
        elif server.message:
            role = "bad" if fig.has_gap(server) else "warn"
            lines.append((("⚑ ", role), (server.message, "text")))
        if server.run is not None and server.run.note:
            lines.append((("⚑ ", "warn"), (server.run.note, "text")))
        if server.figures is not None and server.state is not ServerState.FAILED:
            lines += [((f"– {name}: ", "dim"), (note, "dim")) for name, note in server.figures.notes.items()]
        said = tuple(lines[:5])
        if said != self._said:
            self._said = said
            panel = self.query_one("#message", Static)
            panel.update(paragraphs(said))
            panel.display = bool(said)

    def _paint_charts(self, server: ServerSnapshot, snapshot: Snapshot) -> None:
        span = SPANS[self._span]
        rate, accept = self.query_one("#rate", Chart), self.query_one("#accept", Chart)
        end = chart_end(snapshot.at, span, rate.columns)
        start = end - span
        self._title("#charts", f"last {fig.duration(span)}", server.figures.at if server.figures else None)
        fleet, ascii_only = self.services.fleet, self.services.ascii
        flags = [Flag(mark.at, mark.text) for mark in fleet.marks(server.name, since=start)]
        tok_s = fleet.series(server.name, "decode_tok_s", since=start, points=rate.columns)
        length = fleet.series(server.name, "accept_length", since=start, points=accept.columns)
        rate.show([as_line(tok_s)], start=start, end=end, flags=flags, ascii_only=ascii_only)
        accept.show([as_line(length, "second")], start=start, end=end, flags=flags, ascii_only=ascii_only)
        figures = server.figures if server.state is not ServerState.UNREACHABLE else None
        self.query_one("#rate-line", Line).show(
            (("tok/s  ", "dim"), (fig.rate(figures.decode_tok_s if figures else None), "accent-strong")),
            _peak(tok_s),
        )
        wide = self.query_one("#accept-line").size.width >= 56
        self.query_one("#accept-line", Line).show(
            (
                ("accept length  " if wide else "accept  ", "dim"),
                (fig.number(figures.accept_length if figures else None, 2), "strong"),
                ("   running/queued  " if wide else "   run/q  ", "dim"),
                (fig.running_queued(server), "strong"),
                ("   KV  ", "dim"),
                (fig.percent(figures.token_usage if figures else None), "strong"),
            ),
        )

    def _title(self, panel: str, text: str, at: float | None) -> None:
        """The title of a panel, with the age of what it shows once that is worth saying."""
        age = fig.age(at, self.services.clock())
        self.console_app.set_title(self.query_one(panel), f"{text}   {age} old" if age else text)

    def _paint_memory(self, server: ServerSnapshot) -> None:
        panel = self.query_one("#memory-panel")
        self._title("#memory-panel", memory_title(server), server.at)
        most = 9 if self.has_class("-high") else 5 if self.has_class("-tall") else 2
        width = max(20, panel.content_size.width)
        self.query_one("#memory", Lines).show(memory_lines(server, width, most))

    def _paint_settings(self, server: ServerSnapshot, now: float) -> None:
        rows = settings_rows(server, self._profile_of(server))
        self.query_one("#settings", Grid).set_rows(rows)
        self._paint_windows()
        settings = server.settings
        self.console_app.set_title(
            self.query_one("#settings-panel"), "settings" if settings else "settings   not read back yet"
        )

    def _paint_windows(self) -> None:
        """The audit's picture, where there is room for it."""
        audit = self.services.audit
        entry = audit.entry(self.server_name) if audit is not None and not self.has_class("-short") else None
        width = max(20, self.query_one("#settings-panel").content_size.width)
        lines = picture_lines(entry, width, most=10 if self.has_class("-high") else 6)
        windows = self.query_one("#windows", Lines)
        windows.display = bool(lines)
        windows.show(lines)

    def _profile_of(self, server: ServerSnapshot) -> Profile | None:
        """The profile as it is in the catalogue now; looked up once for each name."""
        if server.profile != self._profile[0]:
            found = None
            if server.profile:
                try:
                    found = self.services.profiles.get(server.profile)
                except ConsoleError:
                    found = None  # The column "asked" then shows that nothing is known.
            self._profile = (server.profile, found)
        return self._profile[1]

    def target_server(self) -> ServerSnapshot | None:
        """This server."""
        return self.console_app.snapshot.server(self.server_name)

    def target_host(self) -> LinkStatus | None:
        """Its host."""
        server = self.target_server()
        return self.console_app.host(server.host) if server else None

    def do_span(self, context: Context) -> None:
        """Other span."""
        self._span = (self._span + 1) % len(SPANS)
        self.repaint()


def _peak(series: Series) -> Pieces:
    values = [value for value in series.values if value is not None and value == value]
    return ((f"peak {fig.rate(max(values))}", "dim"),) if values else ()
