"""Figures and ages as text of fixed width. Missing is ``–``, never 0; no Textual here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash_backend.core.samples import GpuSample, ServerSnapshot
from dflash_backend.core.states import ServerState
from dflash_console.tui.safetext import Pieces

MISSING = "–"
_GAPS = frozenset({"gap", "clamped", "ignored", "declared-but-dropped"})
"""Verdicts of the audit that mean: what is declared is not what is served."""
FRESH_S = 3.0
"""Ages up to this are not shown: everything on the screen is that fresh anyway."""


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or ``–`` when it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Tokens per second in at most six characters: ``148.2``, ``1482``, ``14.8k``."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) < 999.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if abs(value) < 99_999.5 else f"{value / 1000:.0f}k"


def count(value: int | None) -> str:
    """A whole number, or ``–``."""
    return MISSING if value is None else str(value)


def percent(value: float | None) -> str:
    """A share from 0 to 1 as ``81%``."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value * 100:.0f}%"


def gib(mib: float | None) -> str:
    """MiB as GiB with one digit."""
    return MISSING if mib is None or not math.isfinite(mib) else f"{mib / 1024:.1f}"


def duration(seconds: float) -> str:
    """A span in words as short as a table cell: ``12 s``, ``4 min``, ``3 h``, ``5 d``."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def clock_span(seconds: float) -> str:
    """Elapsed time as ``04:12`` or ``1:04:12``."""
    whole = int(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes:02d}:{secs:02d}"


def age_of(at: float | None, now: float) -> float | None:
    """Seconds since ``at``; None when nothing was ever read. A clock that jumps back gives 0."""
    return None if at is None else max(0.0, now - at)


def age(at: float | None, now: float, *, always: bool = False) -> str:
    """The age as ``12s`` once it is worth saying, else an empty text."""
    seconds = age_of(at, now)
    if seconds is None:
        return MISSING if always else ""
    if seconds <= FRESH_S and not always:
        return ""
    return duration(seconds).replace(" min", "m").replace(" ", "")


def gpu_share(gpus: Sequence[GpuSample]) -> float | None:
    """Used over total memory of several GPUs, from those that say both; None when none does."""
    pairs = [
        (g.memory_used_mib, g.memory_total_mib)
        for g in gpus
        if g.memory_used_mib is not None and g.memory_total_mib
    ]
    total = sum(total for _, total in pairs)
    return sum(used for used, _ in pairs) / total if total else None


def bar(share: float | None, width: int) -> str:
    """A bar of ``width`` cells in whole blocks, filled part ``▇`` and the rest ``▁``."""
    if share is None or not math.isfinite(share) or width <= 0:
        return ""
    full = max(0, min(width, round(share * width)))
    return "▇" * full + "▁" * (width - full)


def bar_pieces(share: float | None, width: int) -> Pieces:
    """The bar in the colour that its level deserves, the empty part faint."""
    text = bar(share, width)
    if not text or share is None:
        return ()
    full = text.count("▇")
    role = "bad" if share >= 0.97 else "warn" if share >= 0.92 else "accent"
    return ((text[:full], role), (text[full:], "faint"))


def window_text(value: int | str | None) -> str:
    """The drafter's window as a table cell."""
    return MISSING if value is None else str(value)


def declared_window(server: ServerSnapshot) -> str:
    """The window of a server as a table cell: a flag's value, else what the drafter's config declares."""
    audit = server.audit_summary
    if audit is not None and audit.window is not None and not isinstance(server.window, int):
        return str(audit.window)
    return window_text(server.window)


def audit_badge(audit: str | None) -> tuple[str, str]:
    """Text and role of the window audit: ``✓`` enforced, ``✖gap`` not, ``–`` not declared or not audited."""
    word = (audit or "").lower()
    if word in ("", "not-declared"):
        return MISSING, "dim"
    if word == "enforced":
        return "✓", "good"
    if word in _GAPS:
        return "✖gap", "bad"
    return "?", "warn"


def has_gap(server: ServerSnapshot) -> bool:
    """True when the audit found that the declared window is not what is enforced."""
    return audit_badge(server.audit)[0] == "✖gap"


def budget_topk(server: ServerSnapshot) -> str:
    """Budget and top-k as ``8/8``."""
    if server.budget is None and server.topk is None:
        return MISSING
    return f"{count(server.budget)}/{count(server.topk)}"


def running_queued(server: ServerSnapshot) -> str:
    """Running and queued requests as ``2/0``."""
    figures = server.figures
    if figures is None or (figures.running is None and figures.queued is None):
        return MISSING
    return f"{count(figures.running)}/{count(figures.queued)}"


def state_note(server: ServerSnapshot, now: float) -> str:
    """What stands where figures would stand, for a server that has none; empty for one that serves."""
    state = server.state
    if state in (ServerState.READY, ServerState.FOREIGN):
        return ""
    if state is ServerState.UNREACHABLE:
        seconds = age_of(server.at, now)
        return (
            "unreachable · never seen" if seconds is None else f"unreachable · last seen {duration(seconds)}"
        )
    if state is ServerState.STARTING and server.stage is not None:
        return f"starting · {server.stage.text()}"
    if state is ServerState.FAILED:
        code = server.run.exit_code if server.run else None
        return "failed" if code is None else f"failed · exit {code}"
    return str(state)


_ORDER = {
    ServerState.FAILED: 0,
    ServerState.UNREACHABLE: 1,
    ServerState.STOPPING: 3,
    ServerState.DRAINING: 3,
    ServerState.STARTING: 3,
    ServerState.UNKNOWN: 4,
    ServerState.READY: 5,
    ServerState.FOREIGN: 5,
    ServerState.STOPPED: 6,
}


def urgency(server: ServerSnapshot) -> int:
    """Sort key of "problems first"; servers of one urgency keep the order of the configuration."""
    if server.state is ServerState.READY and has_gap(server):
        return 2
    return _ORDER[server.state]


def fleet_summary(servers: Sequence[ServerSnapshot]) -> str:
    """The header's line: ``4 servers · 3 ready · 1 gap``."""
    ready = sum(s.state is ServerState.READY for s in servers)
    gaps = sum(map(has_gap, servers))
    failed = sum(s.state is ServerState.FAILED for s in servers)
    lost = sum(s.state is ServerState.UNREACHABLE for s in servers)
    parts = [f"{len(servers)} server{'s' if len(servers) != 1 else ''}", f"{ready} ready"]
    parts += [f"{n} {word}" for n, word in ((failed, "failed"), (lost, "unreachable")) if n]
    if gaps:
        parts.append(f"{gaps} gap{'s' if gaps != 1 else ''}")
    return " · ".join(parts)
