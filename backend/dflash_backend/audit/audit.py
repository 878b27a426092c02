"""The audit: config, arguments, log and source put together into one verdict per server."""

from __future__ import annotations

from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.report import AuditReport, Verdict

__all__ = ["AuditInputs", "audit"]


def audit(inputs: AuditInputs) -> AuditReport:
    """The report for what was given. Never raises for bad input: what cannot be read makes it ``unknown``."""
    missing = [text for text in (inputs.draft_config_missing, inputs.source_missing) if text]
    return AuditReport(
        verdict=Verdict.UNKNOWN,
        subject=inputs.subject,
        sglang_version=inputs.sglang_version,
        missing=tuple(missing),
        at=inputs.at,
    )
