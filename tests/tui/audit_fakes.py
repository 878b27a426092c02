"""Audits behind the audit screen: reports as the backend makes them, and a source that says them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from dflash_backend.audit.badges import Entry
from dflash_backend.audit.live import LiveAudit
from dflash_backend.audit.measured import with_measurement
from dflash_backend.audit.measurement import Interval, Measurement, Point, Progress
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

CONFIG = "/root/.cache/huggingface/hub/models--z-lab--Kimi-K2.6-DFlash/snapshots/4f1c/config.json"
MODEL = "/root/venv/lib/python3.12/site-packages/sglang/srt/models/dflash.py"


def rows(attended: int | None, *, causal: bool, layers: int = 6, window: int = 2048) -> tuple[LayerRow, ...]:
    """Sliding layers and a full one at the end."""
    made = []
    for index in range(layers):
        sliding = index < layers - 1
        made.append(
            LayerRow(
                index=index,
                kind="sliding_attention" if sliding else "full_attention",
                declared=window if sliding else None,
                attended=attended if sliding else None,
                attended_known=True,
                causal_declared=sliding,
                causal=causal and sliding,
                evidence=(
                    Evidence(strength=Strength.CONFIG, where=CONFIG, text=f"layer_types[{index}]"),
                    Evidence(strength=Strength.SOURCE, where=MODEL, text="RadixAttention without a window"),
                ),
            )
        )
    return tuple(made)


IGNORED = AuditReport(
    verdict=Verdict.IGNORED,
    subject="kimi-b",
    sglang_version="0.5.12",
    layers=rows(None, causal=False),
    compact_cache=False,
    findings=(
        AuditFinding(
            severity="gap",
            code="window-ignored",
            text="layers 0 to 4: a window of 2048 declared, all of the context attended",
            evidence=rows(None, causal=False)[0].evidence,
        ),
        AuditFinding(
            severity="gap",
            code="causality-differs",
            text="layers 0 to 4: causal declared, bidirectional inside the draft block",
        ),
        AuditFinding(
            severity="info",
            code="cost-acceptance",
            text="acceptance collapses beyond the window, and without causality everywhere: 1.05 of 3.00 "
            "tokens per step were left in the reference pair",
        ),
    ),
    remedies=(
        Remedy(
            kind="plugin",
            text="install the SGLang plugin on the host and restart the server",
            command="dflash-console plugin install gpu2",
        ),
        Remedy(
            kind="upgrade",
            text="install SGLang 0.5.14 or newer in the server's environment",
            command="pip install sglang==0.5.14",
        ),
    ),
)
ENFORCED = replace(
    IGNORED,
    verdict=Verdict.ENFORCED,
    subject="kimi-a",
    sglang_version="0.5.23",
    layers=rows(2048, causal=True),
    findings=(
        AuditFinding(
            severity="ok",
            code="windows-applied",
            text="every declared window is applied, with the declared causality",
            evidence=rows(2048, causal=True)[0].evidence,
        ),
    ),
    remedies=(Remedy(kind="none", text="nothing to do: the declared windows apply"),),
)
UNKNOWN = AuditReport(
    verdict=Verdict.UNKNOWN,
    subject="qwen-8b",
    missing=("/models/draft/config.json: Permission denied",),
    remedies=(Remedy(kind="none", text="find out first what is missing"),),
)
MEASURED = Measurement(
    window=2048,
    pairs=11,
    dropped=1,
    points=tuple(
        Point(name=name, tokens=tokens, accept_length=Interval(mean=mean, low=mean - 0.3, high=mean + 0.3))
        for name, tokens, mean in (
            ("far below", 717, 3.71),
            ("below", 1536, 3.66),
            ("beyond", 4096, 1.31),
            ("far beyond", 8192, 1.12),
        )
    ),
    ratio=Interval(mean=0.33, low=0.28, high=0.39),
    control=Interval(mean=0.99, low=0.91, high=1.07),
    shape="falls",
    text="the accept length falls to 0.33 [0.28, 0.39] of itself beyond the window and not before it "
    "(0.99 [0.91, 1.07] between two lengths below): the window is not applied",
)


def entry(report: AuditReport, at: float, *, measured: bool = False, profile: str = "kimi-chain") -> Entry:
    """A kept audit."""
    shown = with_measurement(report, MEASURED) if measured else report
    audit = LiveAudit(
        report=shown, basis="running", profile=profile, measurement=MEASURED if measured else None
    )
    return Entry(at=at, audit=audit)


class FakeAudits:
    """An ``AuditSource`` over a dictionary; ``gate`` holds what is asked until it is set."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.asked: list[tuple[str, bool]] = []
        self.measures: list[tuple[str, bool]] = []
        self.after: Entry | ConsoleError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: ConsoleError | None = None

    def entry(self, server: str) -> Entry | None:
        return self.entries.get(server)

    async def audit(self, server: str, *, fresh: bool) -> Entry:
        self.asked.append((server, fresh))
        await self.gate.wait()
        if isinstance(self.after, ConsoleError):
            self.entries.setdefault(server, Entry(at=0.0, problem=self.after.lines()[0]))
            raise self.after
        if self.after is not None:
            self.entries[server] = self.after
        return self.entries[server]

    async def measure(self, server: str, *, force: bool) -> AsyncIterator[Progress | Measurement]:
        self.measures.append((server, force))
        if self.refusal is not None:
            raise self.refusal
        yield Progress(done=12, total=48)
        await self.gate.wait()
        kept = self.entries[server]
        assert kept.audit is not None
        self.entries[server] = entry(kept.audit.report, kept.at, measured=True)
        yield MEASURED
