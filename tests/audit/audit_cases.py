"""Drafter configs and shorthands that the audit's tests share."""

from __future__ import annotations

from typing import Any

from dflash_backend.audit.audit import AuditInputs, audit
from dflash_backend.audit.inputs import SourceTree
from dflash_backend.audit.report import AuditReport

RELEASES = (
    "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1",
    "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip
OLD = RELEASES[:5]
"""Releases that build every draft layer full and bidirectional."""
NEW = RELEASES[5:]

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = 2048

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 7168,
    "num_hidden_layers": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 18432,
    "vocab_size": 163840,
    "block_size": 8,
    "num_target_layers": 61,
    "dflash_config": {"mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]},
    "layer_types": [SLIDING] * 5 + [FULL],
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 6,
}
"""Six layers, five of which slide: the drafter of the origin story."""

LOG_LINE = (
    "[2026-06-01 10:00:00 TP0] Initialized DFLASH draft runner. attention_backend=triton, "
    "model=DFlashDraftModel, block_size=8, draft_window_size={window}, compact_cache={compact}"
)


def config(**changes: Any) -> dict[str, Any]:
    """The config with changes; ``...`` takes a field out."""
    made = {**CONFIG, **changes}
    return {key: value for key, value in made.items() if value is not ...}


def look(
    draft: Any = None,
    release: str | None = "0.5.14",
    flag: int | None = None,
    source: SourceTree | None = None,
    **more: Any,
) -> AuditReport:
    """An audit of a config against a release, with the window flag as stated."""
    return audit(
        AuditInputs(
            subject="drafter",
            draft_config=config() if draft is None else draft,
            sglang_version=release,
            draft_window=flag,
            no_draft_window=flag is None,
            source=source,
            **more,
        )
    )


def attended(report: AuditReport) -> list[Any]:
    """(window, causal) per layer; ``?`` where the window is not known."""
    return [(row.attended if row.attended_known else "?", row.causal) for row in report.layers]


def codes(report: AuditReport) -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in report.findings}


def finding(report: AuditReport, code: str) -> str:
    """The text of a finding."""
    return next(one.text for one in report.findings if one.code == code)


ENFORCED_LAYERS = [(WINDOW, True)] * 5 + [(None, False)]
FULL_LAYERS = [(None, False)] * 6
