"""A window audit as pieces of text: verdict, the layers as a picture, what to do, the evidence. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from dflash_backend.audit.badges import Entry
from dflash_backend.audit.measurement import Measurement
from dflash_backend.audit.picture import cache_line, meaning
from dflash_backend.audit.report import AuditFinding, AuditReport, LayerRow, Remedy, Verdict
from dflash_console.tui.safetext import Piece, Pieces, clean, fit

REACH = 131_072
"""Context that fills a bar when the server does not tell how much it serves."""
_NEAR = 16
"""Where the bars begin: they are logarithmic."""
_VERDICTS = {
    Verdict.ENFORCED: ("✓", "good"),
    Verdict.NOT_DECLARED: ("–", "dim"),
    Verdict.UNKNOWN: ("?", "warn"),
}
_SEVERITIES = {"gap": ("✖", "bad"), "warning": ("⚑", "warn"), "ok": ("✓", "good"), "info": ("·", "dim")}
_WORDS_FROM = 34
"""Cells that have to be left over before faults are told in words beside each layer."""


def sign_of(verdict: Verdict) -> tuple[str, str]:
    """Glyph and role of a verdict."""
    return _VERDICTS.get(verdict, ("✖", "bad"))


def verdict_lines(entry: Entry, width: int) -> list[Pieces]:
    """The answer first: verdict, meaning, what it costs, what the draft KV keeps."""
    if entry.audit is None:
        return [
            (("? ", "warn"), ("not audited", "warn")),
            *((("  ", "dim"), (line, "text")) for line in _short(entry.problem, width - 2, 3)),
        ]
    report = entry.audit.report
    glyph, role = sign_of(report.verdict)
    lines: list[Pieces] = [
        (
            (f"{glyph} ", role),
            (str(report.verdict).upper(), role),
            (f"   {meaning(report.verdict)}", "strong"),
        )
    ]
    if cost := _cost(report):
        lines += [(("  ", "dim"), (line, "text")) for line in _short(cost, width - 2, 2)]
    facts = [f"SGLang {report.sglang_version}"] if report.sglang_version else []
    facts += [cache_line(report)] if report.layers else []
    if facts:
        lines.append((("  ", "dim"), (" · ".join(facts), "dim")))
    return lines


def _short(text: str, width: int, most: int) -> list[str]:
    """Text over at most ``most`` lines; what is cut ends in an ellipsis."""
    return textwrap.wrap(
        clean(text), max(20, width), max_lines=most, placeholder=" …", break_on_hyphens=False
    )


def _cost(report: AuditReport) -> str:
    """What follows from the verdict, in one sentence."""
    for code in ("cost-acceptance", "engine-ignored", "engine-clamped", "no-drafter"):
        found = next((one for one in report.findings if one.code == code), None)
        if found is not None:
            return found.text
    return report.missing[0] if report.verdict is Verdict.UNKNOWN and report.missing else ""


# The picture ------------------------------------------------------------------------------------------------


def layer_lines(rows: Sequence[LayerRow], width: int, reach: int = REACH) -> list[Pieces]:
    """Two columns, declared and attended; a bar per layer for how far back it looks."""
    if not rows:
        return [(("no layers are known", "dim"),)]
    bars = max(6, min(40, (width - 47) // 2))
    words = max(0, width - 46 - 2 * bars)
    head: Pieces = (
        (fit("layer", 13), "dim"),
        (fit("declared", 7 + bars), "dim"),
        ("  ", "dim"),
        (fit("really attended", 8 + bars), "dim"),
        ("in the block", "dim"),
    )
    return [head, *(_layer(row, bars, words, reach) for row in rows)]


def _layer(row: LayerRow, bars: int, words: int, reach: int) -> Pieces:
    kind = row.kind.removesuffix("_attention")
    mark, role = {True: ("✓", "good"), False: ("✖", "bad"), None: ("?", "warn")}[row.agrees]
    wrong = row.attended_known and row.declared != row.attended
    attended = _tokens(row.attended) if row.attended_known else "?"
    pieces: list[Piece] = [
        (f"{row.index:>2} ", "dim"),
        (fit(clean(kind, 40), 8), "text"),
        (f" {_tokens(row.declared):>7} ", "text"),
        *_bar(row.declared, bars, reach, "accent"),
        (f"  {attended:>6} ", "bad" if wrong else "text" if row.attended_known else "warn"),
        *_attended(row, bars, reach),
        *_causality(row),
        (f" {mark} ", role),
    ]
    if words >= _WORDS_FROM and row.agrees is False:
        pieces.append((fault_words(row), role))
    return tuple(pieces)


def fault_words(row: LayerRow) -> str:
    """What is wrong with a layer, in a few words."""
    faults = []
    if row.declared != row.attended:
        if row.attended is None:
            faults.append("sees past its window")
        elif row.declared is None:
            faults.append("context cut off")
        else:
            faults.append("another window")
    if row.causal != row.causal_declared and row.causal_declared is not None:
        faults.append("sees ahead" if row.causal_declared else "cannot see ahead")
    return ", ".join(faults)


def _causality(row: LayerRow) -> Pieces:
    word = {True: "causal", False: "both ways", None: "?"}[row.causal]
    wrong = row.causal is not None and row.causal_declared is not None and row.causal != row.causal_declared
    return ((f" {word:<9}", "bad" if wrong else "dim"),)


def _tokens(window: int | None) -> str:
    return "all" if window is None else str(window)


def _cells(window: int | None, width: int, reach: int) -> int:
    """Cells of a bar that a window fills; all of them only for no window."""
    if window is None:
        return width
    share = math.log2(max(2, window) / _NEAR) / math.log2(max(2 * _NEAR, reach) / _NEAR)
    return max(2, min(width - 2, round(share * width)))


def _bar(window: int | None, width: int, reach: int, role: str) -> Pieces:
    full = _cells(window, width, reach)
    end = "▶" if window is None else "┫"
    return (("━" * (full - 1) + end, role), (" " * (width - full), "dim"))


def _attended(row: LayerRow, width: int, reach: int) -> Pieces:
    if not row.attended_known:
        return ((fit("not known", width), "warn"),)
    if row.declared == row.attended:
        return _bar(row.attended, width, reach, "good")
    full = _cells(row.attended, width, reach)
    wanted = _cells(row.declared, width, reach)
    end = "▶" if row.attended is None else "┫"
    if full <= wanted:
        return _bar(row.attended, width, reach, "bad")
    # What lies behind the declared end is what should not be seen.
    beyond = "╋" + "━" * (full - wanted - 1) + end
    return (("━" * (wanted - 1), "good"), (beyond, "bad"), (" " * (width - full), "dim"))


def picture_lines(entry: Entry | None, width: int, most: int) -> list[Pieces]:
    """The picture in a narrow panel, without the words; empty when nothing is known."""
    if entry is None or entry.audit is None or not entry.audit.report.layers:
        return []
    rows = entry.audit.report.layers
    shown = rows if len(rows) < most else rows[: most - 1]
    bar = max(4, (width - 25) // 2)
    lines: list[Pieces] = [
        ((fit("layer", 11), "dim"), (fit("declared", 6 + bar), "dim"), (" attended", "dim"))
    ]
    for row in shown:
        mark, role = {True: ("✓", "good"), False: ("✖", "bad"), None: ("?", "warn")}[row.agrees]
        wrong = row.attended_known and row.declared != row.attended
        seen = _tokens(row.attended) if row.attended_known else "?"
        kind = clean(row.kind.removesuffix("_attention"), 40)
        lines.append(
            (
                (f"{row.index:>2} {fit(kind, 7)} ", "dim"),
                (f"{_tokens(row.declared):>5} ", "text"),
                *_bar(row.declared, bar, REACH, "accent"),
                (f" {seen:>5} ", "bad" if wrong else "text"),
                *_attended(row, bar, REACH),
                (mark, role),
            )
        )
    if len(shown) < len(rows):
        lines.append(((f"   … {len(rows) - len(shown)} more", "dim"),))
    return lines


# What to do, and why ----------------------------------------------------------------------------------------


def remedy_text(report: AuditReport) -> str:
    """What is copied: the first remedy's command, else its words; empty when there is nothing to do."""
    for remedy in report.remedies:
        if remedy.kind != "none":
            return remedy.command or remedy.text
    return ""


def why_lines(entry: Entry, width: int) -> list[Pieces]:
    """Remedies, measurement, findings with their evidence, what is missing."""
    if entry.audit is None:
        return [(("r asks again", "dim"),)]
    report = entry.audit.report
    lines: list[Pieces] = [(("what to do", "accent"),)]
    for remedy in report.remedies:
        lines += _remedy(remedy, width)
    if not report.remedies:
        lines.append((("  nothing", "dim"),))
    if entry.audit.measurement is not None:
        lines += [(), *measured_lines(entry.audit.measurement, width)]
    lines += [(), (("evidence", "accent"),)]
    told = {remedy.text for remedy in report.remedies}
    for finding in _ordered(report.findings):
        lines += _finding(finding, width, told)
    if report.missing:
        lines += [(), (("not known", "accent"),)]
        for text in report.missing:
            lines += _wrapped(text, width, (("  ? ", "warn"),), "text")
    return lines


def _remedy(remedy: Remedy, width: int) -> list[Pieces]:
    first: Pieces = (("  ", "dim"),) if remedy.kind == "none" else ((f"  {remedy.kind:<8}", "strong"),)
    lines = _wrapped(remedy.text, width, first, "text", indent=len("".join(t for t, _ in first)))
    if remedy.command:
        lines += _wrapped(remedy.command, width, (("    $ ", "dim"),), "accent", indent=6)
    return lines


def measured_lines(measurement: Measurement, width: int) -> list[Pieces]:
    """A bar per context length."""
    lines: list[Pieces] = [(("measured", "accent"), (f"   {measurement.pairs} contexts of real text", "dim"))]
    room = max(4, width - 48)
    most = max((point.accept_length.high for point in measurement.points), default=1.0)
    for point in measurement.points:
        mean = point.accept_length.mean
        full = max(1, round(room * mean / most))
        role = "good" if mean > 0.5 * (1 + most) else "bad"
        lines.append(
            (
                (f"  {point.tokens:>6} tokens, {point.name + ' the window':<23}", "dim"),
                (f"{mean:5.2f} ", "strong"),
                ("━" * full, role),
            )
        )
    lines += _wrapped(measurement.text, width, (("  ", "dim"),), "text", indent=2)
    return lines


def _ordered(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    order = ("gap", "warning", "ok", "info")
    return sorted(findings, key=lambda one: order.index(one.severity))


def _finding(finding: AuditFinding, width: int, told: set[str]) -> list[Pieces]:
    glyph, role = _SEVERITIES[finding.severity]
    lines = _wrapped(finding.text, width, ((f"  {glyph} ", role),), "text")
    for proof in finding.evidence[:4]:
        words = f"{proof.where}: {proof.text}" if proof.text else proof.where
        lines += _wrapped(words, width, ((f"      {proof.strength} ", "second"),), "dim", indent=8)
    if finding.remedy and finding.remedy not in told:
        lines += _wrapped(finding.remedy, width, (("      try ", "accent"),), "text", indent=10)
    return lines


def _wrapped(text: str, width: int, first: Pieces, role: str, indent: int = 4) -> list[Pieces]:
    """Text over as many lines as it takes, hanging under its beginning."""
    lead = len("".join(part for part, _ in first))
    parts = textwrap.wrap(
        clean(text),
        max(20, width),
        initial_indent=" " * lead,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ) or [" " * lead]
    lines: list[Pieces] = [(*first, (parts[0][lead:], role))]
    lines += [((part, role),) for part in parts[1:]]
    return lines


def plain_lines(entry: Entry) -> str:
    """The whole screen as text."""
    lines = verdict_lines(entry, 110)
    if entry.audit is not None:
        lines = [*lines, (), *layer_lines(entry.audit.report.layers, 110), (), *why_lines(entry, 110)]
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
