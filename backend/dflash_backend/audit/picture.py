"""A report as plain lines: one bar per layer for how far back it looks, then why, then what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dflash_backend.audit.report import AuditReport, LayerRow, Remedy, Verdict

WIDTH = 24
REFERENCE = 131_072
"""Context that fills the bar; the scale is logarithmic."""
_MARKS = {"gap": "✗", "warning": "!", "ok": "✓", "info": "·"}
_MEANING = {
    Verdict.ENFORCED: "every declared window applies",
    Verdict.CLAMPED: "a window applies, but not as declared",
    Verdict.IGNORED: "windows are declared and layers attend to everything",
    Verdict.DECLARED_BUT_DROPPED: "the config loses its window before the layers are built",
    Verdict.NOT_DECLARED: "the drafter declares no window",
    Verdict.UNKNOWN: "it could not be established",
}


def meaning(verdict: Verdict) -> str:
    """A verdict in a few words."""
    return _MEANING[verdict]


def headline(report: AuditReport) -> str:
    """The verdict in one line."""
    version = f" on SGLang {report.sglang_version}" if report.sglang_version else ""
    return f"{report.subject}{version}: {report.verdict} ({_MEANING[report.verdict]})"


def bar(row: LayerRow, width: int = WIDTH) -> str:
    """How far back a layer looks: filled from the right, ``┊`` where its declared window ends.

    Full width is the whole context; ``?`` where it is not known.
    """
    if not row.attended_known:
        return "?".center(width, "?")
    filled = _length(row.attended, width)
    cells = ["·"] * (width - filled) + ["█"] * filled
    if row.declared is not None and row.declared != row.attended:
        cells[width - _length(row.declared, width)] = "┊"
    return "".join(cells)


def _length(window: int | None, width: int) -> int:
    if window is None:
        return width
    share = math.log2(max(2, window)) / math.log2(REFERENCE)
    return max(1, min(width - 1, round(share * width)))


def layer_lines(rows: Sequence[LayerRow], width: int = WIDTH) -> list[str]:
    """The picture: one line per layer."""
    lines = []
    for row in rows:
        mark = {True: "✓", False: "✗", None: "?"}[row.agrees]
        declared = "all" if row.declared is None else str(row.declared)
        if not row.attended_known:
            attended = "not known"
        else:
            attended = "all context" if row.attended is None else f"{row.attended} tokens"
        kind = row.kind.removesuffix("_attention")
        lines.append(
            f"{mark} {row.index:>3}  {kind:<10.10} declared {declared:>7}  {bar(row, width)}  "
            f"attends {attended:<12}  {_causality(row)}".rstrip()
        )
    return lines


def _causality(row: LayerRow) -> str:
    words = {True: "causal", False: "both ways", None: "causality not known"}
    if row.causal is None or row.causal == row.causal_declared or row.causal_declared is None:
        return words[row.causal]
    return f"{words[row.causal]} (declared {words[row.causal_declared]})"


def cache_line(report: AuditReport) -> str:
    """What the draft KV keeps visible."""
    if report.compact_cache is None:
        return "draft KV visible: not known (neither arguments nor log say whether the window flag is given)"
    if report.cached_window is None:
        return "draft KV visible: the full context (no window flag)"
    return f"draft KV visible: the last {report.cached_window} tokens (window flag, compact index table)"


def report_lines(report: AuditReport) -> Iterator[str]:
    """The whole report as text."""
    yield headline(report)
    if report.layers:
        yield ""
        for line in layer_lines(report.layers):
            yield f"  {line}"
        yield f"  {cache_line(report)}"
    if report.findings:
        yield ""
    for finding in report.findings:
        yield f"{_MARKS[finding.severity]} {finding.text}"
        for item in finding.evidence[:3]:
            text = f": {item.text}" if item.text and item.text != finding.text else ""
            yield f"    [{item.strength}] {item.where}{text}"
        if finding.remedy:
            yield f"    try: {finding.remedy}"
    if report.missing:
        yield ""
        for text in report.missing:
            yield f"missing: {text}"
    yield ""
    for remedy in report.remedies:
        yield from _remedy(remedy)


def _remedy(remedy: Remedy) -> Iterator[str]:
    yield f"remedy ({remedy.kind}): {remedy.text}" if remedy.kind != "none" else f"remedy: {remedy.text}"
    if remedy.command:
        yield f"    {remedy.command}"
