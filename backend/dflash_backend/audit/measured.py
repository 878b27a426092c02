"""What a measurement adds to a report: evidence, and a finding where it contradicts the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dflash_backend.audit.measurement import Measurement
from dflash_backend.audit.report import AuditFinding, AuditReport, Evidence, Strength, Verdict

_CODES = ("measured", "measured-contradicts")
Severity = Literal["ok", "info", "warning", "gap"]


def evidence_of(measurement: Measurement) -> tuple[Evidence, ...]:
    """One piece for each context length, with its interval."""
    where = f"{measurement.pairs} contexts of real text, temperature 0"
    return tuple(
        Evidence(
            strength=Strength.MEASURED,
            where=where,
            text=f"accept length {point.accept_length} at {point.tokens} tokens ({point.name} the window)",
        )
        for point in measurement.points
    )


def with_measurement(report: AuditReport, measurement: Measurement) -> AuditReport:
    """The report with the measurement in front of its findings; the verdict stays that of the rest."""
    severity, code, remark = _weighed(report.verdict, measurement)
    finding = AuditFinding(
        severity=severity,
        code=code,
        text=f"measured: {measurement.text}{f'. {remark}' if remark else ''}",
        evidence=evidence_of(measurement),
    )
    rest = tuple(one for one in report.findings if one.code not in _CODES)
    return replace(report, findings=(finding, *rest))


def _weighed(verdict: Verdict, measurement: Measurement) -> tuple[Severity, str, str]:
    """(severity, code, how it goes together with the verdict)."""
    known = verdict is not Verdict.UNKNOWN
    match measurement.shape:
        case "falls" if verdict is Verdict.ENFORCED:
            return (
                "gap",
                "measured-contradicts",
                "This contradicts the rest of the evidence, which says enforced",
            )
        case "falls":
            return "gap", "measured", f"This goes with the verdict {verdict}" if verdict.is_gap else ""
        case "holds" if verdict in (Verdict.IGNORED, Verdict.DECLARED_BUT_DROPPED):
            remark = f"The rest says {verdict}: this drafter does not mind, or what was read is not what runs"
            return "warning", "measured-contradicts", remark
        case "holds":
            return (
                ("ok" if known else "info"),
                "measured",
                f"This goes with the verdict {verdict}" if known else "",
            )
        case "hardly accepted" if verdict is Verdict.ENFORCED:
            remark = (
                "The windows are said to be enforced: look at the drafter's model, template, quantisation"
            )
            return "warning", "measured-contradicts", remark
        case "hardly accepted" if verdict.is_gap:
            return "info", "measured", f"This goes with the verdict {verdict}"
        case _:
            return "info", "measured", ""


def has_gap(report: AuditReport) -> bool:
    """True when the verdict or a measurement says that what is declared is not what is served."""
    return report.verdict.is_gap or any(
        one.severity == "gap" and one.code in _CODES for one in report.findings
    )
