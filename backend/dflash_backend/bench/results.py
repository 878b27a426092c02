"""Results on disk: a folder per run, one JSON line per finished cell, forced to disk as it finishes.

``run.json`` says what was run against what; ``cells.jsonl`` grows. A crash loses the running cell only, and
a half-written last line is skipped on reading.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dflash_backend.bench.cell import CellResult
from dflash_backend.bench.measures import DEFINITIONS
from dflash_backend.core.errors import FailedError, UsageError
from dflash_backend.core.paths import append_line, data_dir, write_atomic
from dflash_backend.core.text import redact_mapping, sanitise
from dflash_backend.sglang.decode import integer, items, mapping_or_empty, number, text

SCHEMA = 1
RunState = Literal["running", "finished", "cancelled", "failed"]
ExportFormat = Literal["md", "csv", "json"]
FORMATS: tuple[ExportFormat, ...] = ("md", "csv", "json")
_ID = re.compile(r"^[0-9]{8}-[0-9]{6}-[0-9a-f]{4,8}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The head of a run. ``state`` is ``running`` also for a run whose console died: see ``interrupted``."""

    id: str
    folder: str
    job: str
    server: str
    state: RunState
    started_at: float | None = None
    finished_at: float | None = None
    cells_done: int = 0
    cells_planned: int | None = None
    unclean: int = 0
    message: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run as read back. ``cells`` are JSON objects in the order in which they finished."""

    info: RunInfo
    head: Mapping[str, object] = field(default_factory=dict)
    cells: tuple[Mapping[str, object], ...] = ()
    notes: tuple[str, ...] = ()


def results_dir() -> Path:
    """Where results lie: ``bench`` in the data folder."""
    return data_dir() / "bench"


def plain(value: object) -> object:
    """Dataclasses and tuples as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return number(value)
    return value


class ResultWriter:
    """Writes one run. Every method leaves a file that can be read."""

    def __init__(self, head: Mapping[str, object], *, root: Path | None = None) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self.id = f"{stamp}-{secrets.token_hex(3)}"
        self.folder = (root or results_dir()) / self.id
        self._head: dict[str, object] = {
            "schema": SCHEMA,
            "id": self.id,
            "state": "running",
            "pid": os.getpid(),
            "definitions": DEFINITIONS,
            **head,
        }
        self._write_head()

    def add(self, cell: CellResult) -> None:
        """Appends a finished cell and forces it to disk. Raises FailedError when that does not work."""
        document = plain(cell)
        assert isinstance(document, dict)
        line = json.dumps(
            {"schema": SCHEMA, "run": self.id, "clean": cell.clean, **document}, allow_nan=False
        )
        try:
            append_line(self.folder / "cells.jsonl", line)
        except OSError as error:
            raise self._failed(error) from None

    def finish(self, state: RunState, message: str = "", *, at: float) -> None:
        """Marks the end of the run."""
        self._head |= {"state": state, "message": message, "finished_at": at}
        self._write_head()

    def _write_head(self) -> None:
        try:
            write_atomic(self.folder / "run.json", json.dumps(redact_mapping(plain(self._head)), indent=1))
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> FailedError:
        return FailedError(
            f"the result cannot be written: {error.strerror or error}",
            where=str(self.folder),
            unchanged="cells that were written before are kept",
            next_step="make room or check the permissions of the data folder, then run again",
        )


def list_runs(*, root: Path | None = None) -> tuple[RunInfo, ...]:
    """All runs, newest first; a damaged folder is a row that says so."""
    folder = root or results_dir()
    try:
        names = sorted((p.name for p in folder.iterdir() if _ID.match(p.name)), reverse=True)
    except OSError:
        return ()
    return tuple(_read(folder / name).info for name in names)


def load_run(run_id: str, *, root: Path | None = None) -> Run:
    """Reads one run by its id, the beginning of it, or ``last``. Raises UsageError unless one fits."""
    folder = root or results_dir()
    known = [info.id for info in list_runs(root=root)]
    fitting = known[:1] if run_id == "last" else [name for name in known if name.startswith(run_id)]
    if run_id in known:
        fitting = [run_id]
    if len(fitting) != 1 or not run_id:
        shown = sanitise(run_id, multiline=False, limit=60)
        what = f"'{shown}' fits {len(fitting)} runs" if fitting else f"there is no run '{shown}'"
        raise UsageError(what, where=str(folder), next_step="'bench list' shows the runs")
    return _read(folder / fitting[0])


def _read(folder: Path) -> Run:
    notes: list[str] = []
    head: Mapping[str, object] = {}
    try:
        head = mapping_or_empty(json.loads((folder / "run.json").read_bytes()))
    except (OSError, ValueError, RecursionError):
        notes.append("run.json cannot be read")
    cells: list[Mapping[str, object]] = []
    broken = 0
    try:
        lines = (folder / "cells.jsonl").read_bytes().split(b"\n")
    except OSError:
        lines = []
    for line in lines:
        if line.strip():
            try:
                cell = mapping_or_empty(json.loads(line))
            except (ValueError, RecursionError):
                cell = {}
            if cell:
                cells.append(cell)
            else:
                broken += 1
    if broken:
        notes.append(f"{broken} line(s) of cells.jsonl cannot be read: the run was interrupted in the middle")
    state = _state(head.get("state"))
    job = mapping_or_empty(head.get("job"))
    info = RunInfo(
        id=folder.name,
        folder=str(folder),
        job=text(job.get("name"), 80) or "?",
        server=text(head.get("server"), 80) or "?",
        state=state,
        started_at=number(head.get("started_at")),
        finished_at=number(head.get("finished_at")),
        cells_done=len(cells),
        cells_planned=integer(head.get("cells_planned")),
        unclean=sum(1 for cell in cells if cell.get("unclean")),
        message=text(head.get("message"), 400) or "; ".join(notes),
        interrupted=state == "running" and not _alive(head),
    )
    return Run(info=info, head=head, cells=tuple(cells), notes=tuple(notes))


def _state(value: object) -> RunState:
    return value if value in ("running", "finished", "cancelled", "failed") else "failed"


def _alive(head: Mapping[str, object]) -> bool:
    """Whether the console that writes a run may still be there; another machine's is taken to be."""
    if text(mapping_or_empty(head.get("client")).get("host")) != (platform.node() or None):
        return True
    pid = integer(head.get("pid"))
    if pid is None or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)  # asks only
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# Export ------------------------------------------------------------------------------------------------

_COLUMNS: tuple[tuple[str, str, int], ...] = (
    # column, path into the cell, digits
    ("conc", "concurrency", 0),
    ("tok/s", "output_tok_s", 1),
    ("MAD", "output_tok_s_mad", 1),
    ("tok/s/user", "user_tok_s.p50", 1),
    ("accept", "accept_length", 2),
    ("TTFT p50 ms", "ttft_ms.p50", 0),
    ("TTFT p99 ms", "ttft_ms.p99", 0),
    ("TPOT p50 ms", "tpot_ms.p50", 1),
    ("ITL p50 ms", "itl_ms.p50", 1),
    ("ITL p99 ms", "itl_ms.p99", 1),
    ("ICL p50 ms", "icl_ms.p50", 1),
    ("E2E p50 ms", "e2e_ms.p50", 0),
    ("E2E p99 ms", "e2e_ms.p99", 0),
    ("requests", "requests", 0),
    ("failed", "failed", 0),
)


def export_run(run_id: str, fmt: str, *, root: Path | None = None) -> str:
    """A run as Markdown, CSV or one JSON document. Raises UsageError for another format or run."""
    if fmt not in FORMATS:
        raise UsageError(
            f"no such format: {sanitise(fmt, limit=40)}", next_step=f"one of: {', '.join(FORMATS)}"
        )
    run = load_run(run_id, root=root)
    if fmt == "json":
        document = {
            "schema": SCHEMA,
            "run": dict(run.head),
            "cells": list(run.cells),
            "notes": list(run.notes),
        }
        return json.dumps(redact_mapping(document), indent=1) + "\n"
    return _markdown(run) if fmt == "md" else _csv(run)


def _at(cell: Mapping[str, object], path: str) -> object:
    value: object = cell
    for part in path.split("."):
        value = mapping_or_empty(value).get(part)
    return value


def _csv(run: Run) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "server", "job", "key", *(path for _, path, _ in _COLUMNS), "clean", "unclean"])
    for cell in run.cells:
        values = [_at(cell, path) for _, path, _ in _COLUMNS]
        reasons = "; ".join(str(reason) for reason in items(cell.get("unclean")))
        row = [run.info.id, run.info.server, run.info.job, cell.get("key"), *values, not reasons, reasons]
        writer.writerow(["" if value is None else _harmless(value) for value in row])
    return out.getvalue()


def _harmless(value: object) -> object:
    # A spreadsheet would run a text that begins like a formula.
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def _markdown(run: Run) -> str:
    settings = mapping_or_empty(mapping_or_empty(run.head.get("server_info")).get("settings"))
    job = mapping_or_empty(run.head.get("job"))
    lines = [f"# Benchmark {run.info.id}", ""]
    lines += [
        f"- job: {_cell(run.info.job)}, server: {_cell(run.info.server)}, state: {_shown_state(run.info)}"
    ]
    named = ("version", "model", "drafter", "algorithm", "window", "budget", "topk", "block_size")
    told = [f"{name} {_cell(settings[name])}" for name in named if settings.get(name) is not None]
    lines += [f"- server runs: {', '.join(told)}"] if told else []
    asked = ("prompts_source", "output_tokens", "temperature", "ignore_eos", "route", "repeats")
    lines += [f"- asked: {', '.join(f'{name} {_cell(job.get(name))}' for name in asked)}", ""]
    lines.append("| " + " | ".join(name for name, _, _ in _COLUMNS) + " | clean |")
    lines.append("|" + " ---: |" * len(_COLUMNS) + " --- |")
    for cell in run.cells:
        values = [_figure(_at(cell, path), digits) for _, path, digits in _COLUMNS]
        reasons = [_cell(reason) for reason in items(cell.get("unclean"))]
        lines.append("| " + " | ".join(values) + f" | {'; '.join(reasons) or 'yes'} |")
    lines += ["", "Definitions:", ""]
    lines += [f"- {_cell(name)}: {_cell(words)}" for name, words in DEFINITIONS.items()]
    return "\n".join(lines) + "\n"


def _shown_state(info: RunInfo) -> str:
    return "interrupted" if info.interrupted else info.state


def _figure(value: object, digits: int) -> str:
    figure = number(value)
    return "–" if figure is None else f"{figure:.{digits}f}"


def _cell(value: object) -> str:
    return sanitise(str(value), multiline=False, limit=300).replace("|", "\\|")


def summary_rows(cells: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The exported columns of each cell by their path, for tables elsewhere."""
    return [
        {path: _at(cell, path) for _, path, _ in _COLUMNS} | {"unclean": cell.get("unclean")}
        for cell in cells
    ]
