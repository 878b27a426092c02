"""Benchmark events and stored runs in the form that the bench screen shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dflash_backend.bench.cell import CellProgress, CellResult
from dflash_backend.bench.results import Run
from dflash_backend.bench.run import Event, RunStarted
from dflash_console.tui.services import BenchCell, BenchState, CellState


def next_state(state: BenchState | None, event: Event, *, at: float) -> BenchState:
    """The state after an event. The first event of a run must be its RunStarted."""
    if isinstance(event, RunStarted):
        arm = str(event.algorithm or "NONE")
        cells = tuple(
            BenchCell(key=key, arm=arm, point=f"concurrency {concurrency}")
            for key, concurrency in event.cells
        )
        return BenchState(
            run_id=event.run_id,
            job=event.job,
            server=event.server,
            cells=cells,
            started_at=at,
            folder=event.folder,
        )
    if state is None:
        raise ValueError("a benchmark's first event says what will be measured")
    if isinstance(event, CellProgress):
        share = event.done / event.total if event.total else None
        changed = _with(
            state.cells,
            event.key,
            state="running",
            progress=share,
            done=event.done,
            total=event.total,
            tok_s=event.tok_s,
            accept_length=event.accept_length,
            message=f"{event.phase}, repeat {event.repeat + 1} of {event.repeats}",
        )
        return dataclasses.replace(state, cells=changed, eta_s=event.eta_s)
    if isinstance(event, CellResult):
        changed = _with(state.cells, event.key, **_result(event))
        return dataclasses.replace(state, cells=changed)
    return dataclasses.replace(
        state, finished_at=at, ok=event.ok, eta_s=None, message=event.message or event.state
    )


def _with(cells: tuple[BenchCell, ...], key: str, **changes: Any) -> tuple[BenchCell, ...]:
    return tuple(dataclasses.replace(cell, **changes) if cell.key == key else cell for cell in cells)


def _outcome(*, clean: bool, rate: object) -> CellState:
    if rate is None:
        return "failed"
    return "done" if clean else "unclean"


def _result(cell: CellResult) -> dict[str, Any]:
    return {
        "state": _outcome(clean=cell.clean, rate=cell.output_tok_s),
        "progress": 1.0,
        "done": cell.requests,
        "total": cell.requests,
        "tok_s": cell.output_tok_s,
        "accept_length": cell.accept_length,
        "ttft_p50_ms": cell.ttft_ms.p50 if cell.ttft_ms else None,
        "ttft_p99_ms": cell.ttft_ms.p99 if cell.ttft_ms else None,
        "itl_p50_ms": cell.itl_ms.p50 if cell.itl_ms else None,
        "itl_p99_ms": cell.itl_ms.p99 if cell.itl_ms else None,
        "flags": cell.unclean,
        "message": "; ".join(cell.errors),
    }


def stored_state(run: Run) -> BenchState:
    """A run read back from its folder."""
    info = run.info
    head = run.head.get("server_info")
    settings = head.get("settings") if isinstance(head, Mapping) else None
    arm = str(settings.get("algorithm") or "NONE") if isinstance(settings, Mapping) else "–"
    return BenchState(
        run_id=info.id,
        job=info.job,
        server=info.server,
        cells=tuple(_stored_cell(cell, arm) for cell in run.cells),
        started_at=info.started_at,
        finished_at=info.finished_at,
        ok=info.state == "finished" and not info.unclean,
        message="interrupted" if info.interrupted else info.message or info.state,
        folder=info.folder,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _stored_cell(cell: Mapping[str, object], arm: str) -> BenchCell:
    def part(name: str, which: str) -> float | None:
        spread = cell.get(name)
        return _number(spread.get(which)) if isinstance(spread, Mapping) else None

    unclean = cell.get("unclean")
    flags = tuple(str(reason) for reason in unclean) if isinstance(unclean, list) else ()
    rate = _number(cell.get("output_tok_s"))
    return BenchCell(
        key=str(cell.get("key")),
        arm=arm,
        point=f"concurrency {cell.get('concurrency')}",
        state=_outcome(clean=not flags, rate=rate),
        progress=1.0,
        tok_s=rate,
        accept_length=_number(cell.get("accept_length")),
        ttft_p50_ms=part("ttft_ms", "p50"),
        ttft_p99_ms=part("ttft_ms", "p99"),
        itl_p50_ms=part("itl_ms", "p50"),
        itl_p99_ms=part("itl_ms", "p99"),
        flags=flags,
    )
