"""Counters of an engine's life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .api import RequestOutput, StepReport


@dataclass(slots=True)
class Totals:
    """What all steps together did; the names are those of ``EngineStats`` without ``_total``."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    verify_passes: int = 0
    accepted_drafts: int = 0
    proposed_drafts: int = 0

    def count(self, report: StepReport, aborted: Sequence[RequestOutput]) -> None:
        """Add one step; ``aborted`` are the aborts that are reported with it."""
        self.prompt_tokens += report.prefill_tokens
        self.generated_tokens += report.committed
        self.verify_passes += report.verify_passes
        self.aborted += len(aborted)
        self.requests += len(aborted)
        for output in report.outputs:
            self.requests += output.finish is not None
            self.accepted_drafts += output.accepted_drafts or 0
            self.proposed_drafts += output.proposed_drafts or 0

    def as_stats(self) -> dict[str, int]:
        """Keyword arguments of ``EngineStats``."""
        return {f"{name}_total": value for name, value in asdict(self).items()}
