"""What an audit says: one row per drafter layer, a verdict, findings with evidence and remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = 1


class Verdict(enum.StrEnum):
    """The answer in one word."""

    ENFORCED = "enforced"
    CLAMPED = "clamped"
    """One window on all layers: an approximation of what was declared."""
    IGNORED = "ignored"
    DECLARED_BUT_DROPPED = "declared-but-dropped"
    """The config names a window that transformers or SGLang silently takes out of it."""
    NOT_DECLARED = "not-declared"
    UNKNOWN = "unknown"

    @property
    def is_gap(self) -> bool:
        """True when what is declared is not what is served."""
        return self in (Verdict.CLAMPED, Verdict.IGNORED, Verdict.DECLARED_BUT_DROPPED)


class Strength(enum.StrEnum):
    """How strong a piece of evidence is, strongest first."""

    MEASURED = "measured"
    PLUGIN = "plugin"
    """The plugin inside the running server reports it."""
    SOURCE = "source"
    """Evaluated from the installed SGLang."""
    LOG = "log"
    ARGUMENTS = "arguments"
    CONFIG = "config"
    RELEASE = "release"
    """Known of this release in general; the installed files were not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a statement comes from. ``where`` is a file, an endpoint or a log line; ``text`` what it says."""

    strength: Strength
    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One drafter layer. Windows count positions, the layer's own included; None (and known): all of them.

    ``attended_known`` False: what it attends to could not be established. ``causal`` is inside the block.
    """

    index: int
    kind: str
    """``sliding_attention``, ``full_attention``, or what the config says."""
    declared: int | None
    attended: int | None
    attended_known: bool
    causal_declared: bool | None
    causal: bool | None
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether the layer does what was declared, in window and causality; None when not known."""
        if not self.attended_known:
            return None
        return self.declared == self.attended and self.causal_declared == self.causal


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One statement. ``code`` is stable and meant for programs."""

    severity: Literal["ok", "info", "warning", "gap"]
    code: str
    text: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to do about a gap, for this release. ``command`` can be run as it is."""

    kind: Literal["flag", "plugin", "upgrade", "config", "backend", "none"]
    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The whole audit of one server, or of a config against a release."""

    verdict: Verdict
    subject: str
    """A server's name or the config's path."""
    sglang_version: str | None = None
    layers: tuple[LayerRow, ...] = ()
    cached_window: int | None = None
    """Tokens that the draft KV keeps visible; None: the full context."""
    compact_cache: bool | None = None
    findings: tuple[AuditFinding, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be read, for ``unknown`` and for weaker evidence."""
    at: float | None = None

    @property
    def exit_code(self) -> int:
        """0 enforced or not declared, 1 a gap or unknown."""
        return 0 if self.verdict in (Verdict.ENFORCED, Verdict.NOT_DECLARED) else 1

    def to_json(self) -> dict[str, Any]:
        """The JSON document; all text was sanitised where it entered."""

        def evidence(items: tuple[Evidence, ...]) -> list[dict[str, str]]:
            return [{"strength": str(e.strength), "where": e.where, "text": e.text} for e in items]

        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "subject": self.subject,
            "sglang_version": self.sglang_version,
            "layers": [
                {
                    "index": row.index,
                    "kind": row.kind,
                    "declared": row.declared,
                    "attended": row.attended,
                    "attended_known": row.attended_known,
                    "causal_declared": row.causal_declared,
                    "causal": row.causal,
                    "agrees": row.agrees,
                    "reason": row.reason,
                    "evidence": evidence(row.evidence),
                }
                for row in self.layers
            ],
            "cached_window": self.cached_window,
            "compact_cache": self.compact_cache,
            "findings": [
                {
                    "severity": f.severity,
                    "code": f.code,
                    "text": f.text,
                    "evidence": evidence(f.evidence),
                    "remedy": f.remedy,
                }
                for f in self.findings
            ],
            "remedies": [{"kind": r.kind, "text": r.text, "command": r.command} for r in self.remedies],
            "missing": list(self.missing),
        }
