"""Servers as rows of the fleet table; pure."""

from __future__ import annotations

from dflash_backend.core.samples import ServerSnapshot
from dflash_backend.core.states import ServerState
from dflash_console.tui import figures as fig
from dflash_console.tui.look import STATE_GLYPHS
from dflash_console.tui.safetext import Pieces, clean
from dflash_console.tui.widgets.grid import Column, Row

COLUMNS = (
    Column(key="glyph", title="", width=1),
    Column(key="server", title="server", width=11, want=12, most=24),
    Column(key="state", title="state", width=11, rank=10),
    Column(key="host", title="host", width=8, most=20, rank=30),
    Column(key="profile", title="profile", width=14, want=16, most=30, rank=50),
    Column(key="algo", title="algo", width=6, rank=40),
    Column(key="window", title="window", width=10, rank=70),
    Column(key="budget", title="B/k", width=5, align="right", rank=45),
    Column(key="tok_s", title="tok/s", width=6, align="right"),
    Column(key="accept", title="accept", width=6, align="right", rank=80),
    Column(key="requests", title="run/q", width=5, align="right", rank=60),
    Column(key="memory", title="GPU mem", width=8, want=14, most=20, align="right"),
    Column(key="age", title="age", width=4, align="right"),
)
_BAR_ROOM = 12


def row_of(server: ServerSnapshot, now: float, memory_width: int, busy: str = "") -> Row:
    """One server. ``memory_width`` is the width of the memory column, ``busy`` what is in progress."""
    glyph, role = STATE_GLYPHS[server.state]
    note = fig.state_note(server, now)
    if busy:
        note = f"{busy} · {note}" if note else ""
    badge, badge_role = fig.audit_badge(server.audit)
    window = fig.declared_window(server)
    figures = server.figures
    quiet = server.state in (ServerState.UNREACHABLE, ServerState.UNKNOWN)
    text = "dim" if quiet or server.state is ServerState.STOPPED else "text"
    tok_s = figures.decode_tok_s if figures and not quiet else None
    accept = figures.accept_length if figures and not quiet else None
    cells: dict[str, Pieces] = {
        "glyph": ((glyph, role),),
        "server": ((server.name, "strong" if text == "text" else "dim"),),
        "state": ((busy or str(server.state), role if server.state is not ServerState.READY else "dim"),),
        "host": ((server.host, "dim"),),
        "profile": ((server.profile or fig.MISSING, text),),
        "algo": ((str(server.algorithm) if server.algorithm else fig.MISSING, text),),
        "window": _window(window, badge, badge_role, text),
        "budget": ((fig.budget_topk(server), text),),
        "tok_s": ((fig.rate(tok_s), "strong" if tok_s is not None else "dim"),),
        "accept": _accept(accept, badge),
        "requests": ((fig.running_queued(server) if not quiet else fig.MISSING, text),),
        "memory": _memory(server, memory_width),
        "age": ((fig.age(server.at, now), "warn" if quiet else "dim"),),
    }
    if note:
        note_role = "bad" if server.state is ServerState.FAILED else "warn" if quiet else role
        return Row(server.name, cells, ((note, note_role),), "tok_s", "memory")
    return Row(server.name, cells)


def _window(window: str, badge: str, badge_role: str, text: str) -> Pieces:
    if badge == fig.MISSING:
        return ((window, text if window != fig.MISSING else "dim"),)
    return ((f"{window} ", text), (badge, badge_role))


def _accept(value: float | None, badge: str) -> Pieces:
    role = "dim" if value is None else "warn" if badge == "✖gap" else "text"
    return ((fig.number(value, 2), role),)


def _memory(server: ServerSnapshot, width: int) -> Pieces:
    share = fig.gpu_share(server.gpus)
    if share is not None:
        words = f"{share * 100:3.0f}%"
        role = "bad" if share >= 0.97 else "warn" if share >= 0.92 else "text"
        if width < _BAR_ROOM:
            return ((words, role),)
        return (*fig.bar_pieces(share, width - 6), (f"  {words}", role))
    if server.rss_mib is not None:
        return ((f"rss {fig.gib(server.rss_mib)}G", "text"),)
    return ((fig.MISSING, "dim"),)


def matches(server: ServerSnapshot, pattern: str) -> bool:
    """True when every word of the filter stands somewhere in what identifies the server."""
    hay = " ".join(
        (
            server.name,
            server.host,
            server.profile or "",
            str(server.algorithm or ""),
            str(server.state),
            "gap" if fig.has_gap(server) else "",
        )
    ).lower()
    return all(word in hay for word in pattern.lower().split())


def plain_line(server: ServerSnapshot, now: float) -> str:
    """One server as a line for the clipboard."""
    figures = server.figures
    parts = [
        server.name,
        server.host,
        str(server.state),
        server.profile or fig.MISSING,
        str(server.algorithm or fig.MISSING),
        f"window {fig.declared_window(server)}",
        f"B/k {fig.budget_topk(server)}",
        f"tok/s {fig.rate(figures.decode_tok_s if figures else None)}",
        f"accept {fig.number(figures.accept_length if figures else None, 2)}",
        f"run/q {fig.running_queued(server)}",
        f"age {fig.age(server.at, now, always=True)}",
    ]
    return clean("  ".join(parts))
