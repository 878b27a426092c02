"""Cells of a benchmark as rows; pure."""

from __future__ import annotations

import textwrap

from dflash_console.tui.figures import MISSING, bar_pieces, number, rate
from dflash_console.tui.safetext import Piece, Pieces, clean, width_of
from dflash_console.tui.services import BenchCell, BenchState
from dflash_console.tui.widgets.grid import Column, Row

COLUMNS = (
    Column(key="sign", title="", width=1),
    Column(key="arm", title="arm", width=9, most=20),
    Column(key="point", title="point", width=15, most=26),
    Column(key="state", title="state", width=10, want=14),
    Column(key="tok_s", title="tok/s", width=6, align="right"),
    Column(key="accept", title="accept", width=6, align="right"),
    Column(key="ttft", title="TTFT ms 50/99", width=13, align="right", rank=60),
    Column(key="itl", title="ITL ms 50/99", width=12, align="right", rank=55),
    Column(key="requests", title="done", width=8, align="right", rank=50),
)
_SIGNS = {
    "waiting": ("·", "dim"),
    "running": ("◐", "accent"),
    "done": ("✓", "good"),
    "unclean": ("⚑", "warn"),
    "failed": ("✖", "bad"),
}


def _pair(low: float | None, high: float | None, digits: int) -> str:
    if low is None and high is None:
        return MISSING
    return f"{number(low, digits)}/{number(high, digits)}"


def cell_row(cell: BenchCell) -> Row:
    """One cell."""
    sign, role = _SIGNS[cell.state]
    state: Pieces = ((cell.state, role),)
    if cell.state == "running" and cell.progress is not None:
        state = (*bar_pieces(cell.progress, 5), (f" {cell.progress * 100:3.0f}%", "text"))
    requests = MISSING if cell.total is None else f"{cell.done or 0}/{cell.total}"
    return Row(
        cell.key,
        {
            "sign": ((sign, role),),
            "arm": ((cell.arm, "text"),),
            "point": ((cell.point, "text"),),
            "state": state,
            "tok_s": ((rate(cell.tok_s), "strong" if cell.tok_s is not None else "dim"),),
            "accept": ((number(cell.accept_length, 2), "text"),),
            "ttft": ((_pair(cell.ttft_p50_ms, cell.ttft_p99_ms, 0), "text"),),
            "itl": ((_pair(cell.itl_p50_ms, cell.itl_p99_ms, 1), "text"),),
            "requests": ((requests, "dim"),),
        },
    )


def notes_of(state: BenchState) -> list[Pieces]:
    """What has to be said about cells: flags and failures."""
    lines: list[Pieces] = []
    for cell in state.cells:
        name = f"{cell.arm} {cell.point}"
        lines += [(("⚑ ", "warn"), (name, "strong"), (f"  {flag}", "text")) for flag in cell.flags]
        if cell.message:
            sign, role = _SIGNS[cell.state if cell.state in ("failed", "running") else "unclean"]
            lines.append(((f"{sign} ", role), (name, "strong"), (f"  {cell.message}", "text")))
    return lines


def run_sign(run: BenchState, *, running: bool) -> Piece:
    """How a run stands: under way, clean, with flags, or failed."""
    if running:
        kind = "running"
    elif run.ok:
        kind = "done"
    else:
        kind = "unclean" if run.cells and all(c.state in ("done", "unclean") for c in run.cells) else "failed"
    sign, role = _SIGNS[kind]
    return f"{sign} ", role


def wrapped(line: Pieces, width: int) -> list[Pieces]:
    """A line whose last piece goes on in further lines, indented, where it is too long."""
    *head, (raw, role) = line
    # Cleaned before it is measured: what is left of hostile text may be nothing.
    text = clean(raw)
    used = sum(width_of(piece) for piece, _ in head) + len(text) - len(text.lstrip())
    if width < 20 or used > width // 2 or used + width_of(text.lstrip()) <= width:
        return [(*head, (text, role))]
    rows = textwrap.wrap(text, width, initial_indent=" " * used, subsequent_indent=" " * 4)
    gap = sum(width_of(piece) for piece, _ in head)
    return [(*head, (rows[0][gap:], role)), *(((row, role),) for row in rows[1:])]


def table_text(state: BenchState) -> str:
    """The cells as tab-separated text, for the clipboard."""
    head = "arm\tpoint\tstate\ttok/s\taccept\tTTFT p50 ms\tTTFT p99 ms\tITL p50 ms\tITL p99 ms"
    rows = [
        "\t".join(
            (
                cell.arm,
                cell.point,
                cell.state,
                number(cell.tok_s, 2),
                number(cell.accept_length, 3),
                number(cell.ttft_p50_ms, 1),
                number(cell.ttft_p99_ms, 1),
                number(cell.itl_p50_ms, 2),
                number(cell.itl_p99_ms, 2),
            )
        )
        for cell in state.cells
    ]
    return "\n".join((head, *rows))
