"""Benchmarks: jobs and earlier runs on the left, cells with live progress and results on the right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_console.tui.actions import BENCH
from dflash_console.tui.benchrows import COLUMNS, cell_row, notes_of, run_sign, table_text, wrapped
from dflash_console.tui.deciders import Context
from dflash_console.tui.figures import age, clock_span, duration
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.services import BenchJob, BenchState
from dflash_console.tui.widgets.grid import Column, Grid, Row
from dflash_console.tui.widgets.lines import Lines

_NOTES = 8


class BenchScreen(ConsoleScreen):
    """Runs one job at a time; leaving the screen does not stop it."""

    WHERE = BENCH
    CSS_PATH = "bench.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(BENCH)]
    AUTO_FOCUS = "#jobs"

    def __init__(self, server: str | None) -> None:
        super().__init__()
        self._server = server
        self._jobs: tuple[BenchJob, ...] = ()
        self._runs: tuple[BenchState, ...] = ()
        self._was_running = False

    def compose_body(self) -> Iterable[Widget]:
        """Jobs and runs, cells and notes."""
        with Horizontal():
            with Vertical(id="jobs-panel", classes="panel"):
                yield Grid(
                    (Column(key="name", title="job", width=16, most=80),),
                    id="jobs",
                    header=False,
                    empty="reading jobs …",
                )
            with Vertical(id="cells-side"):
                with Vertical(id="cells-panel", classes="panel"):
                    yield Grid(COLUMNS, id="cells", empty="r runs the selected job")
                with Vertical(id="notes-panel", classes="panel"):
                    yield Lines(id="notes")

    def on_ready(self) -> None:
        """Reads jobs and runs."""
        self.query_one("#jobs-panel").border_title = "jobs and runs"
        self.query_one("#notes-panel").border_title = "flags and failures"
        self.console_app.background(self, self._read, "benchmarks", group="bench-list")

    async def _read(self) -> None:
        bench = self.services.bench
        if bench is None:
            return
        grid = self.query_one("#jobs", Grid)
        try:
            self._jobs = await bench.jobs()
            self._runs = await bench.runs()
        except ConsoleError as error:
            grid.set_empty(error.lines()[0])
            self.console_app.show_error(error)
            return
        grid.set_empty("no jobs: `bench run FILE` takes any job file")
        self.repaint()

    def summary_text(self, snapshot: Snapshot) -> str:
        """Which server a job would run against."""
        return f"against {self._server}" if self._server else "no server selected"

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Jobs, and the cells of what is selected or runs."""
        task = self.console_app.bench
        if self._was_running and not task.running:
            self.console_app.background(self, self._read, "benchmarks", group="bench-list")
        self._was_running = task.running
        rows = [
            Row(
                f"job:{job.name}",
                {
                    "name": (
                        ("✖ ", "bad") if job.problem else ("  ", "dim"),
                        (job.name, "dim" if job.problem else "strong"),
                    )
                },
            )
            for job in self._jobs
        ]
        running = task.state.run_id if task.running and task.state is not None else None
        rows += [
            Row(
                f"run:{run.run_id}",
                {
                    "name": (
                        run_sign(run, running=run.run_id == running),
                        (run.job, "text"),
                        (
                            f"  {age(run.finished_at or run.started_at, now, always=True)} ago  {run.server}",
                            "dim",
                        ),
                    )
                },
            )
            for run in self._runs
        ]
        self.query_one("#jobs", Grid).set_rows(rows)
        self._paint_cells(now)

    def _shown(self) -> BenchState | None:
        """The run that runs, unless an earlier one is selected."""
        key = self.query_one("#jobs", Grid).key or ""
        if key.startswith("run:"):
            return next((run for run in self._runs if run.run_id == key[4:]), None)
        task = self.console_app.bench
        return task.state if task.state is not None else None

    def _paint_cells(self, now: float) -> None:
        task, state = self.console_app.bench, self._shown()
        grid, notes = self.query_one("#cells", Grid), self.query_one("#notes", Lines)
        panel = self.query_one("#cells-panel")
        if state is None:
            grid.set_empty(task.error or ("starting …" if task.running else "r runs the selected job"))
            grid.set_rows([])
            notes.show(self._job_notes())
            self.console_app.set_title(panel, "cells")
            return
        grid.set_rows([cell_row(cell) for cell in state.cells])
        finished = sum(cell.state not in ("waiting", "running") for cell in state.cells)
        parts = [state.job, state.server, f"{finished}/{len(state.cells)} cells"]
        if state is task.state and task.running:
            if state.started_at is not None:
                parts.append(clock_span(now - state.started_at))
            if state.eta_s is not None:
                parts.append(f"this repeat about {duration(state.eta_s)} more")
        self.console_app.set_title(panel, " · ".join(parts))
        lines: list[Pieces] = notes_of(state)
        if state is task.state and task.error:
            lines.insert(0, (("✖ ", "bad"), (task.error, "text")))
        if state.message:
            lines.append(((state.message, "dim"),))
        lines = [part for line in lines for part in wrapped(line, notes.size.width)]
        hidden = len(lines) - _NOTES
        if hidden > 0:
            lines = [*lines[: _NOTES - 1], ((f"… {hidden + 1} more in the run's files", "dim"),)]
        notes.show(lines or [(("none", "dim"),)])

    def _job_notes(self) -> list[Pieces]:
        job = self._selected_job()
        if job is None:
            return [(("none", "dim"),)]
        if job.problem:
            return [(("✖ ", "bad"), (job.problem, "text"))]
        cells = f"{job.cells} cells" if job.cells is not None else ""
        text = " · ".join(p for p in (job.description, cells, job.origin) if p) or job.name
        return wrapped(((text, "dim"),), self.query_one("#notes", Lines).size.width)

    def _selected_job(self) -> BenchJob | None:
        key = self.query_one("#jobs", Grid).key or ""
        return next((job for job in self._jobs if f"job:{job.name}" == key), None)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Other job or run, other cells."""
        if event.grid.id == "jobs":
            self._paint_cells(self.services.clock())

    def target_server(self) -> ServerSnapshot | None:
        """The server that jobs run against."""
        return self.console_app.snapshot.server(self._server) if self._server else None

    def target_host(self) -> LinkStatus | None:
        """Its host."""
        server = self.target_server()
        return self.console_app.host(server.host) if server else None

    def do_bench_run(self, context: Context) -> None:
        """Runs the selected job."""
        job, task = self._selected_job(), self.console_app.bench
        if job is None:
            self.console_app.tell("select a job to run", "warning")
        elif job.problem:
            self.console_app.tell(f"{job.name} cannot be run: {job.problem}", "warning")
        elif task.running:
            self.console_app.tell("a benchmark is running: x stops it", "warning")
        elif context.server is not None:
            task.start(job.name, context.server.name)
            self.repaint()

    def do_bench_stop(self, context: Context) -> None:
        """Stops what runs."""
        self.console_app.bench.stop()

    def do_copy(self, context: Context) -> None:
        """The cells as a table."""
        state = self._shown()
        if state is None:
            self.console_app.tell("there are no cells to copy", "warning")
        else:
            self.console_app.copy(table_text(state), f"{len(state.cells)} cells")
