"""Audits kept per run: once by themselves, again when something changed, quiet and patient when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from dflash_backend.audit.badges import RETRY_S, AuditKeeper, key_of, summary_of
from dflash_backend.audit.live import LiveAudit
from dflash_backend.audit.measurement import Interval, Measurement
from dflash_backend.audit.report import AuditFinding, AuditReport, LayerRow, Remedy, Verdict
from dflash_backend.core.errors import UnreachableError
from dflash_backend.core.samples import EffectiveSettings, RunStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState

ROW = LayerRow(
    index=0,
    kind="sliding_attention",
    declared=2048,
    attended=None,
    attended_known=True,
    causal_declared=True,
    causal=False,
)
REPORT = AuditReport(
    verdict=Verdict.IGNORED,
    subject="a",
    layers=(ROW,),
    findings=(AuditFinding(severity="gap", code="window-ignored", text="all of it is attended"),),
    remedies=(
        Remedy(kind="none", text="nothing"),
        Remedy(kind="plugin", text="install it", command="dflash-console plugin install h"),
    ),
)
SETTINGS = EffectiveSettings(raw={"speculative_draft_window_size": None, "port": 1, "version": "0.5.14"})


def server(
    state: ServerState = ServerState.READY, *, run: str | None = "r1", **values: object
) -> ServerSnapshot:
    made = RunStatus(run_id=run, server="a", folder="", manager="setsid") if run else None
    base: dict[str, object] = {
        "name": "a",
        "host": "h",
        "port": 1,
        "state": state,
        "run": made,
        "settings": SETTINGS,
    }
    return ServerSnapshot(**{**base, **values})  # type: ignore[arg-type]


class World:
    """A fleet that shows what it is told, an audit that counts, a clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queue: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.audits = 0
        self.fails: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.report = REPORT
        self.keeper = AuditKeeper(self.audit, self.changes, clock=lambda: self.now)

    async def audit(self, name: str) -> LiveAudit:
        self.audits += 1
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return LiveAudit(report=replace(self.report, at=self.now), basis="running")

    async def changes(self) -> AsyncIterator[Snapshot]:
        while True:
            yield await self.queue.get()

    async def show(self, *servers: ServerSnapshot) -> None:
        self.queue.put_nowait(Snapshot(at=self.now, servers=servers))
        await self.until(self.queue.empty)
        await self.until(lambda: not self.keeper.pending() or not self.gate.is_set())

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(100_000):
            await asyncio.sleep(0)
            if condition():
                break
        else:
            raise AssertionError("it did not come true")
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.keeper.start()
    yield made
    await made.keeper.close()


async def test_a_server_that_gets_ready_is_audited_once(world: World) -> None:
    await world.show(server(ServerState.STARTING))
    await world.show(server(settings=None))
    assert world.audits == 0, "not before it tells its settings"
    assert world.keeper.summary("a") is None
    for _ in range(5):
        await world.show(server())
    assert world.audits == 1
    summary = world.keeper.summary("a")
    assert summary is not None
    assert (summary.verdict, summary.gap, summary.window) == ("ignored", True, 2048)
    assert summary.text == "all of it is attended"
    assert summary.remedy == "dflash-console plugin install h"
    assert (await world.keeper.get("a")).audit is not None
    assert world.audits == 1, "asking for it takes what is kept"
    await world.keeper.get("a", fresh=True)
    assert world.audits == 2


@pytest.mark.parametrize(
    "changed",
    [
        server(run="r2"),
        server(settings=EffectiveSettings(raw={"speculative_draft_window_size": 512, "version": "0.5.14"})),
        server(
            settings=EffectiveSettings(raw={"dflash_engine": {"layer_windows": [1]}, "version": "0.5.14"})
        ),
    ],
    ids=["another run", "another window", "another mode"],
)
async def test_another_run_or_other_settings_are_audited_again(world: World, changed: ServerSnapshot) -> None:
    await world.show(server())
    await world.show(changed)
    assert world.audits == 2


async def test_what_goes_up_and_down_by_itself_is_no_change(world: World) -> None:
    await world.show(server())
    noisy = {**SETTINGS.raw, "last_gen_throughput": 17.0, "memory_usage": {"graph": 1}}
    await world.show(server(settings=EffectiveSettings(raw=noisy)))
    assert world.audits == 1


async def test_a_server_that_cannot_be_seen_keeps_its_badge_and_a_stopped_one_loses_it(world: World) -> None:
    await world.show(server())
    await world.show(server(ServerState.UNREACHABLE, settings=None))
    assert world.keeper.summary("a") is not None
    await world.show(server(ServerState.STOPPED, settings=None))
    assert world.keeper.summary("a") is None
    await world.show(server())
    assert world.audits == 2, "the same run id after a stop was seen: asked again"


@pytest.mark.parametrize("error", [UnreachableError("no answer", where="host h"), RuntimeError("a fault")])
async def test_a_failure_is_a_reason_and_is_tried_again_later(world: World, error: Exception) -> None:
    world.fails = error
    await world.show(server())
    summary = world.keeper.summary("a")
    assert summary is not None
    assert (summary.verdict, summary.gap) == ("unknown", False)
    assert "no answer" in summary.text or "RuntimeError" in summary.text
    await world.show(server())
    assert world.audits == 1, "not at every snapshot"
    world.now += RETRY_S + 1
    await world.show(server())
    assert world.audits == 2
    world.now += RETRY_S + 1
    await world.show(server())
    assert world.audits == 2, "less and less often"
    world.now += RETRY_S
    world.fails = None
    await world.show(server())
    assert world.audits == 3
    kept = world.keeper.summary("a")
    assert kept is not None
    assert kept.verdict == "ignored"


async def test_a_failure_does_not_take_away_what_was_known(world: World) -> None:
    await world.show(server())
    world.fails = UnreachableError("gone")
    with pytest.raises(UnreachableError):
        await world.keeper.get("a", fresh=True)
    kept = world.keeper.summary("a")
    assert kept is not None
    assert kept.verdict == "ignored"


async def test_two_who_ask_share_one_audit_and_a_caller_that_goes_does_not_end_it(world: World) -> None:
    world.gate.clear()
    first = asyncio.create_task(world.keeper.get("a"))
    second = asyncio.create_task(world.keeper.get("a", fresh=True))
    await world.until(lambda: world.audits == 1)
    first.cancel()
    world.gate.set()
    assert (await second).audit is not None
    assert world.audits == 1


async def test_a_measurement_stays_with_its_run(world: World) -> None:
    interval = Interval(mean=1.0, low=0.9, high=1.1)
    measurement = Measurement(
        window=2048,
        pairs=9,
        dropped=0,
        points=(),
        ratio=interval,
        control=interval,
        shape="holds",
        text="holds",
    )
    world.keeper.measured("a", measurement)
    assert world.keeper.entry("a") is None, "nothing to keep it with"
    await world.show(server())
    world.keeper.measured("a", measurement)
    await world.keeper.get("a", fresh=True)
    entry = world.keeper.entry("a")
    assert entry is not None
    assert entry.audit is not None
    assert entry.audit.measurement == measurement
    assert entry.audit.report.findings[0].code == "measured-contradicts"
    await world.show(server(run="r2"))
    entry = world.keeper.entry("a")
    assert entry is not None
    assert entry.audit is not None
    assert entry.audit.measurement is None


async def test_closing_ends_what_goes_on(world: World) -> None:
    world.gate.clear()
    await world.show(server())
    assert world.keeper.pending()
    await world.keeper.close()
    await world.until(lambda: not world.keeper.pending())


def test_a_report_that_is_not_known_says_what_is_missing() -> None:
    report = AuditReport(verdict=Verdict.UNKNOWN, subject="a", missing=("config.json: Permission denied",))
    assert summary_of(report).text == "config.json: Permission denied"
    assert key_of(server(settings=None)) is None
