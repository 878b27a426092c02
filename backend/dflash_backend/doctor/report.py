"""What the doctor says: findings with a state, a text and a next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. ``unknown``: it could not be, which says nothing about it."""

    name: str
    status: Status
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Everything about one host. ``at``: seconds since the epoch.

    ``exit_code`` is the command line's: 0 nothing failed, 1 something did, 2 to 4 the host could not be
    looked at (configuration, unreachable, refused).
    """

    host: str
    at: float
    findings: tuple[Finding, ...]
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing failed; warnings and what is unknown do not count."""
        return self.exit_code == 0

    def to_json(self) -> Mapping[str, Any]:
        """The report as plain values for JSON."""
        return {
            "host": self.host,
            "at": self.at,
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
        }
