"""The audit of a reference engine: what it reports of its layers, or what its window mode will do.

It is no SGLang, so a report about it names no SGLang version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dflash_backend.audit.report import (
    AuditFinding,
    AuditReport,
    Evidence,
    LayerRow,
    Remedy,
    Strength,
    Verdict,
)
from dflash_backend.core.errors import ConsoleError
from dflash_backend.sglang.decode import flag, integer, items, mapping_or_empty, text
from dflash_backend.sglang.draft_config import DraftConfig, read_draft_config

WHERE = "/server_info dflash_engine.layer_windows"
MODE = "speculative-draft-window-mode"
SIZE = "speculative-draft-window-size"
COST = {
    Verdict.IGNORED: "the layers attend to everything, and to the block both ways: in the reference pair "
    "that leaves 1.06 of 3.25 tokens per step (context 1024)",
    Verdict.CLAMPED: "one window on every layer, the full one too, and the block both ways: in the reference "
    "pair that leaves 1.06 of 3.25 tokens per step (context 1024)",
}


def is_engine(argv: Sequence[str]) -> bool:
    """True for the command line of the reference engine."""
    return "dflash_engine" in argv[:6]


def from_server(
    subject: str,
    settings: Mapping[str, object],
    config: bytes | None,
    config_where: str,
    config_missing: str,
    at: float,
) -> AuditReport:
    """From /server_info of a running engine. ``settings`` are its flat names, ``config`` the drafter's."""
    engine = mapping_or_empty(settings.get("dflash_engine"))
    told = [mapping_or_empty(one) for one in items(engine.get("layer_windows"))]
    declared, problem = _declared(config, config_missing)
    rows = []
    for place, one in enumerate(told):
        kind = text(one.get("declared"), 40) or "?"
        window, causal = integer(one.get("window")), flag(one.get("causal"))
        sees = "all context" if window is None else f"window {window}"
        said = f"{sees}, {'causal' if causal else 'both ways'} in the block"
        rows.append(
            _row(
                integer(one.get("layer")) if integer(one.get("layer")) is not None else place,
                kind,
                declared,
                config_where,
                window,
                causal,
                Evidence(strength=Strength.PLUGIN, where=WHERE, text=said),
            )
        )
    mode = text(settings.get("speculative_draft_window_mode"), 40) or "?"
    asked = Evidence(
        strength=Strength.ARGUMENTS, where="/server_info speculative_draft_window_mode", text=f"mode {mode}"
    )
    compact = flag(settings.get("speculative_draft_compact_cache"))
    return _report(subject, rows, asked, compact, problem, at)


def from_arguments(
    subject: str, argv: Sequence[str], config: bytes | None, config_where: str, config_missing: str, at: float
) -> AuditReport:
    """From a command line: what the engine's window mode does with the drafter's config."""
    options = dict(pairwise(argv))
    mode = options.get(f"--{MODE}", "declared")
    size = integer(options.get(f"--{SIZE}"))
    declared, problem = _declared(config, config_missing)
    asked = Evidence(strength=Strength.ARGUMENTS, where="command line", text=f"--{MODE} {mode}")
    rows = []
    if declared is not None and declared.layer_types is not None:
        for place, kind in enumerate(declared.layer_types):
            sliding = kind == "sliding_attention"
            own = declared.sliding_window if sliding else None
            if mode == "ignored":
                window, causal = None, False
            elif mode == "clamped":
                window, causal = size if size is not None else declared.sliding_window, False
            else:
                window, causal = own, sliding
                if size is not None:  # a further limit on context positions
                    window = min(own or size + 1, size + 1) if causal else size
            rows.append(_row(place, kind, declared, config_where, window, causal, asked))
    compact = "--speculative-draft-compact-cache" in argv
    return _report(subject, rows, asked, compact, problem, at)


def _declared(config: bytes | None, missing: str) -> tuple[DraftConfig | None, str]:
    if config is None:
        return None, missing
    try:
        return read_draft_config(config), ""
    except ConsoleError as error:
        return None, error.lines()[0]


def _row(
    index: int | None,
    kind: str,
    declared: DraftConfig | None,
    config_where: str,
    window: int | None,
    causal: bool | None,
    evidence: Evidence,
) -> LayerRow:
    sliding = kind == "sliding_attention"
    wanted = declared.sliding_window if declared is not None and sliding else None
    proof = [evidence]
    if declared is not None:
        words = f"{kind}, {'all context' if wanted is None else f'window {wanted}'}"
        proof.insert(0, Evidence(strength=Strength.CONFIG, where=config_where, text=words))
    known = declared is not None or not sliding
    return LayerRow(
        index=index or 0,
        kind=kind,
        declared=wanted,
        attended=window,
        attended_known=known,
        causal_declared=sliding,
        causal=causal,
        evidence=tuple(proof),
        reason="" if known else "the declared window is not known",
    )


def _report(
    subject: str,
    rows: Sequence[LayerRow],
    asked: Evidence,
    compact: bool | None,
    problem: str,
    at: float,
) -> AuditReport:
    verdict = _verdict(rows)
    findings = [_finding(row) for row in rows if row.agrees is False]
    remedies: tuple[Remedy, ...] = ()
    if verdict.is_gap:
        remedy = f'set window = "config" in the profile, which gives --{MODE} declared, and restart'
        findings.insert(
            0,
            AuditFinding(
                severity="gap", code=f"engine-{verdict}", text=COST[verdict], evidence=(asked,), remedy=remedy
            ),
        )
        remedies = (Remedy(kind="config", text=remedy),)
    elif verdict is Verdict.ENFORCED:
        findings.append(
            AuditFinding(
                severity="ok",
                code="engine-enforced",
                text="every layer attends to what the drafter's config declares",
                evidence=(asked, *rows[0].evidence),
            )
        )
    return AuditReport(
        verdict=verdict,
        subject=subject,
        layers=tuple(rows),
        cached_window=max((row.attended or 0 for row in rows), default=0)
        if compact and rows and all(row.attended is not None for row in rows)
        else None,
        compact_cache=compact,
        findings=tuple(findings),
        remedies=remedies,
        missing=(problem,) if problem else (),
        at=at,
    )


def _verdict(rows: Sequence[LayerRow]) -> Verdict:
    if not rows or any(row.agrees is None for row in rows):
        return Verdict.UNKNOWN
    if all(row.agrees for row in rows):
        return Verdict.ENFORCED if any(row.declared is not None for row in rows) else Verdict.NOT_DECLARED
    narrowed = any(row.attended is not None and row.attended < (row.declared or 1 << 62) for row in rows)
    return Verdict.CLAMPED if narrowed else Verdict.IGNORED


def _finding(row: LayerRow) -> AuditFinding:
    parts = []
    if row.declared != row.attended:
        sees = "everything" if row.attended is None else f"the last {row.attended} positions"
        wants = "everything" if row.declared is None else f"the last {row.declared}"
        parts.append(f"attends to {sees}, declared: {wants}")
    if row.causal_declared != row.causal:
        parts.append(
            "its block is attended both ways, declared: causal"
            if row.causal_declared
            else "its block is causal, declared: both ways"
        )
    return AuditFinding(
        severity="gap",
        code="layer-differs",
        text=f"layer {row.index} ({row.kind}) {'; '.join(parts)}",
        evidence=row.evidence,
    )
