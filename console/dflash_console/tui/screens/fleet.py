"""The fleet: every server in one table, what needs attention, and the tok/s of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_console.tui.actions import FLEET
from dflash_console.tui.attention import Notice, notices
from dflash_console.tui.deciders import Context
from dflash_console.tui.figures import fleet_summary, rate, urgency
from dflash_console.tui.fleetrows import COLUMNS, matches, plain_line, row_of
from dflash_console.tui.history import SPANS, chart_end, total
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.widgets.chart import Chart
from dflash_console.tui.widgets.grid import Column, Grid, Row

_MARGIN = 2


class FleetScreen(ConsoleScreen):
    """The first screen."""

    WHERE = FLEET
    CSS_PATH = "fleet.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(FLEET)]
    AUTO_FOCUS = "#servers"

    def __init__(self) -> None:
        super().__init__()
        self._problems_first = True
        self._span = 0
        self._notices: list[Notice] = []

    def compose_body(self) -> Iterable[Widget]:
        """Table above, chart and problems below."""
        with Vertical(id="servers-panel", classes="panel"):
            yield Grid(COLUMNS, id="servers", empty="no servers: add one to the configuration file")
        with Horizontal(id="below"):
            with Vertical(id="rate-panel", classes="panel"):
                yield Chart(id="rate", label_width=5)
            with Vertical(id="attention-panel", classes="panel"):
                yield Grid(
                    (Column(key="text", title="", width=10, most=500),),
                    id="attention",
                    header=False,
                    empty="nothing needs attention",
                )

    def on_ready(self) -> None:
        """Titles of the panels."""
        self.query_one("#attention-panel").border_title = "needs attention"

    def summary_text(self, snapshot: Snapshot) -> str:
        """Counts by state."""
        return fleet_summary(snapshot.servers)

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Table, problems, chart."""
        grid = self.query_one("#servers", Grid)
        servers = [s for s in snapshot.servers if matches(s, self.filter_text)]
        if self._problems_first:
            servers.sort(key=urgency)
        memory = next((p.width for p in grid.placed if p.column.key == "memory"), 8)
        jobs = self.console_app.jobs
        if self.filter_text:
            grid.set_empty("no server matches the filter: esc clears it")
        grid.set_rows([row_of(s, now, memory, jobs.busy(s.name)) for s in servers])
        order = "problems first" if self._problems_first else "as configured"
        parts = ("servers", order, f"filter “{self.filter_text}”" if self.filter_text else "")
        self._title("#servers-panel", " · ".join(p for p in parts if p))
        self._paint_notices(snapshot, now)
        self._paint_chart(snapshot)

    def _title(self, panel: str, text: str) -> None:
        self.console_app.set_title(self.query_one(panel), text)

    def _paint_notices(self, snapshot: Snapshot, now: float) -> None:
        self._notices = notices(snapshot, now)
        rows = []
        for notice in self._notices:
            rows.append(
                Row(
                    f"{notice.kind}:{notice.target}:{notice.text[:24]}",
                    {
                        "text": (
                            (f"{notice.glyph} ", notice.role),
                            (notice.target, "strong"),
                            (f"  {notice.text}", "text"),
                        )
                    },
                )
            )
            if notice.next_step:
                rows.append(Row(rows[-1].key + ":next", {"text": ((f"  {notice.next_step}", "dim"),)}))
        self.query_one("#attention", Grid).set_rows(rows)

    def _paint_chart(self, snapshot: Snapshot) -> None:
        chart = self.query_one("#rate", Chart)
        span, columns = SPANS[self._span], chart.columns
        end = chart_end(snapshot.at, span, columns)
        start = end - span
        parts = [
            self.services.fleet.series(s.name, "decode_tok_s", since=start, points=columns)
            for s in snapshot.servers
        ]
        line = total(parts, start, end, columns)
        chart.show([line], start=start, end=end, ascii_only=self.services.ascii)
        now = [
            s.figures.decode_tok_s
            for s in snapshot.servers
            if s.figures and s.figures.decode_tok_s is not None and s.state == "ready"
        ]
        counted = f"   {len(now)} of {len(snapshot.servers)} servers" if now else ""
        self._title("#rate-panel", f"tok/s   {rate(sum(now) if now else None)}{counted}")

    def target_server(self) -> ServerSnapshot | None:
        """The server under the cursor, in the table or among the problems."""
        attention = self.query_one("#attention", Grid)
        key = self.query_one("#servers", Grid).key
        if attention.has_focus and (notice := self._notice()) is not None and notice.kind == "server":
            key = notice.target
        return self.console_app.snapshot.server(key) if key else None

    def target_host(self) -> LinkStatus | None:
        """The host of that server."""
        server = self.target_server()
        return self.console_app.host(server.host) if server else None

    def _notice(self) -> Notice | None:
        key = self.query_one("#attention", Grid).key
        if key is None:
            return None
        key = key.removesuffix(":next")
        return next((n for n in self._notices if f"{n.kind}:{n.target}:{n.text[:24]}" == key), None)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Which keys work depends on the row."""
        self.paint_keys()

    def on_descendant_focus(self) -> None:
        """And on the panel."""
        if self._ready:
            self.paint_keys()

    async def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """A click opens."""
        await self.action_act("open")

    def do_open(self, context: Context) -> None:
        """Opens the server, or the host when a problem of a host is selected."""
        if self.query_one("#attention", Grid).has_focus:
            notice = self._notice()
            if notice is not None and notice.kind == "host":
                self.console_app.open_hosts(notice.target)
                return
        if context.server is not None:
            self.console_app.open_server(context.server.name)

    def do_sort(self, context: Context) -> None:
        """Other order."""
        self._problems_first = not self._problems_first
        self.repaint()

    def do_span(self, context: Context) -> None:
        """Other span."""
        self._span = (self._span + 1) % len(SPANS)
        self.repaint()

    def do_copy(self, context: Context) -> None:
        """The selected server as a line of text."""
        if context.server is not None:
            text = plain_line(context.server, self.services.clock())
            self.console_app.copy(text, "the server's line")
