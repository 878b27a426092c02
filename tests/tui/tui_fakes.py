"""A fleet of deterministic data behind the screens' protocols: the one seam of the tests of the TUI."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dflash_backend.control.contract import (
    Action,
    Change,
    Decision,
    Granted,
    Outcome,
    Plan,
    PlanWarning,
    Step,
)
from dflash_backend.core.errors import UsageError
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.core.samples import (
    EffectiveSettings,
    GpuSample,
    LinkStatus,
    RunStatus,
    ServerFigures,
    ServerSnapshot,
    Snapshot,
    Stage,
)
from dflash_backend.core.states import LinkState, ServerState, StageName
from dflash_backend.telemetry.contract import Mark, Series, SeriesName
from dflash_console.tui.services import (
    BenchCell,
    BenchJob,
    BenchState,
    Finding,
    KeyOffer,
    ProfileSummary,
    Services,
)

NOW = datetime(2026, 11, 30, 12, 41, 7, tzinfo=UTC).timestamp()


class Clock:
    """A clock that moves only when told to."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def gpus(count: int, share: float, name: str = "NVIDIA RTX PRO 6000 Blackwell") -> tuple[GpuSample, ...]:
    total = 97_887.0
    return tuple(
        GpuSample(
            index=i,
            name=name,
            memory_used_mib=total * min(0.99, share + 0.004 * (i % 3)),
            memory_total_mib=total,
            utilization_pct=88.0 - i,
            power_w=410.0 + 3 * i,
            power_limit_w=600.0,
            temperature_c=61.0 + i,
            health="ok",
        )
        for i in range(count)
    )


def run(server: str, **values: object) -> RunStatus:
    base: dict[str, object] = {
        "run_id": f"{server}-20261130-1003",
        "server": server,
        "folder": f"/root/.local/state/dflash-console/runs/{server}",
        "manager": "systemd",
        "alive": True,
        "pid": 4711,
        "pgid": 4711,
        "started_at": NOW - 9480,
        "started_by": "alice@laptop",
    }
    return RunStatus(**{**base, **values})  # type: ignore[arg-type]


def servers() -> tuple[ServerSnapshot, ...]:
    return (
        ServerSnapshot(
            name="kimi-a",
            host="gpu1",
            port=30000,
            state=ServerState.READY,
            profile="kimi-ddtree8",
            algorithm=Algorithm.DDTREE,
            window=2048,
            budget=8,
            topk=8,
            audit="enforced",
            figures=ServerFigures(
                server="kimi-a",
                at=NOW - 1,
                decode_tok_s=148.2,
                decode_source="counter",
                accept_length=4.31,
                running=2,
                queued=0,
                token_usage=0.31,
                kv_tokens=71_900,
            ),
            settings=EffectiveSettings(
                version="0.5.23",
                model="moonshotai/Kimi-K2.6",
                drafter="z-lab/Kimi-K2.6-DFlash",
                algorithm=Algorithm.DDTREE,
                window=2048,
                window_known=True,
                budget=8,
                topk=8,
                block_size=8,
                max_running_requests=48,
                max_total_tokens=232_448,
                context_length=262_144,
                memory_mib={"weights": 74_240.0, "kv_cache": 14_336.0, "graphs": 1_946.0},
                raw={"mem_fraction_static": 0.85, "tp_size": 8, "attention_backend": "triton"},
            ),
            gpus=gpus(8, 0.81),
            run=run("kimi-a", profile="kimi-ddtree8"),
            at=NOW - 1,
        ),
        ServerSnapshot(
            name="kimi-b",
            host="gpu2",
            port=30000,
            state=ServerState.READY,
            profile="kimi-chain",
            algorithm=Algorithm.DFLASH,
            window=2048,
            audit="gap",
            figures=ServerFigures(
                server="kimi-b",
                at=NOW - 1,
                decode_tok_s=96.0,
                accept_length=1.62,
                running=2,
                queued=0,
                token_usage=0.28,
            ),
            gpus=gpus(8, 0.83),
            run=run("kimi-b", profile="kimi-chain"),
            at=NOW - 1,
            message="remedy: plugin install gpu2",
        ),
        ServerSnapshot(
            name="qwen-8b",
            host="gpu3",
            port=30001,
            state=ServerState.STARTING,
            stage=Stage(name=StageName.GRAPHS, done=14, total=24),
            profile="qwen-ddtree32",
            algorithm=Algorithm.DDTREE,
            window="off",
            budget=32,
            topk=8,
            gpus=gpus(1, 0.42, "NVIDIA H200"),
            run=run("qwen-8b", profile="qwen-ddtree32", started_at=NOW - 95),
            at=NOW - 4,
        ),
        ServerSnapshot(name="scratch", host="gpu9", port=30000, state=ServerState.UNREACHABLE, at=NOW - 247),
    )


def more_servers() -> tuple[ServerSnapshot, ...]:
    return (
        ServerSnapshot(
            name="broken",
            host="gpu4",
            port=30000,
            state=ServerState.FAILED,
            profile="qwen-ar",
            algorithm=Algorithm.NONE,
            run=run("broken", alive=False, exit_code=1, exited_at=NOW - 30),
            at=NOW - 2,
            message="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.",
        ),
        ServerSnapshot(
            name="cpu-demo",
            host="local",
            port=8123,
            state=ServerState.READY,
            profile="reference",
            algorithm=Algorithm.DDTREE,
            window=64,
            budget=16,
            topk=4,
            figures=ServerFigures(
                server="cpu-demo", at=NOW, decode_tok_s=12.4, accept_length=3.1, running=1, queued=0
            ),
            rss_mib=612.0,
            gpu_note="no GPU on this host: neither pynvml nor nvidia-smi answers",
            run=run("cpu-demo", rss_mib=612.0),
            at=NOW,
        ),
        ServerSnapshot(
            name="other",
            host="gpu1",
            port=9000,
            state=ServerState.FOREIGN,
            at=NOW,
            figures=ServerFigures(server="other", at=NOW, decode_tok_s=31.0, running=0, queued=0),
        ),
        ServerSnapshot(
            name="spare", host="gpu2", port=30007, state=ServerState.STOPPED, profile="kimi-ar", at=NOW
        ),
    )


def hosts() -> tuple[LinkStatus, ...]:
    up = [
        LinkStatus(host=f"gpu{i}", state=LinkState.UP, since=NOW - 7200, last_seen=NOW - 1) for i in (1, 2, 3)
    ]
    lost = LinkStatus(
        host="gpu9",
        state=LinkState.LOST,
        since=NOW - 240,
        last_seen=NOW - 247,
        message="connection timed out",
        retry_at=NOW + 18,
    )
    new = LinkStatus(
        host="gpu12", state=LinkState.KEY_UNKNOWN, since=NOW - 60, message="key never seen before"
    )
    return (*up, lost, new)


def snapshot(*extra: ServerSnapshot) -> Snapshot:
    return Snapshot(at=NOW, servers=(*servers(), *extra), hosts=hosts())


class FakeFleet:
    """A FleetView that says what it is told."""

    def __init__(self, first: Snapshot | None = None) -> None:
        self.now = first or snapshot()
        self._new = asyncio.Event()
        self.closed = False

    def push(self, new: Snapshot) -> None:
        self.now = new
        self._new.set()

    def snapshot(self) -> Snapshot:
        return self.now

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        known = self.now.server(server)
        if known is None or known.figures is None:
            return Series(name=name)
        base = known.figures.decode_tok_s if name == "decode_tok_s" else known.figures.accept_length
        if base is None:
            return Series(name=name)
        step = max(1.0, (NOW - since) / max(1, points))
        times, values = [], []
        at = since + step
        while at <= NOW:
            age = NOW - at
            wave = 0.93 + 0.06 * math.sin(at / 47) + 0.03 * math.sin(at / 7.3)
            before = 0.66 if age > 330 else 1.0
            gap = 120 < age < 150 and server == "kimi-a"
            times.append(at)
            values.append(None if gap else base * wave * before)
            at += step
        return Series(name=name, times=tuple(times), values=tuple(values))

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        marks = (Mark(at=NOW - 330, text="B 4→8"),) if server == "kimi-a" else ()
        return tuple(mark for mark in marks if mark.at >= since)

    async def changes(self) -> AsyncIterator[Snapshot]:
        while True:
            await self._new.wait()
            self._new.clear()
            yield self.now

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        self.closed = True


PROFILES = (
    Profile(
        name="kimi-ddtree8",
        description="Kimi-K2.6, DFlash with DDTree, 8 nodes, on 8x RTX PRO 6000",
        target="moonshotai/Kimi-K2.6",
        drafter="z-lab/Kimi-K2.6-DFlash",
        algorithm=Algorithm.DDTREE,
        window="config",
        budget=8,
        topk=8,
        block_size=8,
        options={"mem-fraction-static": 0.85, "tp-size": 8, "attention-backend": "triton"},
    ),
    Profile(
        name="kimi-ddtree16",
        description="Kimi-K2.6, DFlash with DDTree, 16 nodes",
        target="moonshotai/Kimi-K2.6",
        drafter="z-lab/Kimi-K2.6-DFlash",
        algorithm=Algorithm.DDTREE,
        budget=16,
        topk=8,
        options={"mem-fraction-static": 0.82, "tp-size": 8, "attention-backend": "triton"},
    ),
    Profile(
        name="kimi-chain",
        description="Kimi-K2.6, DFlash chain",
        target="moonshotai/Kimi-K2.6",
        drafter="z-lab/Kimi-K2.6-DFlash",
        algorithm=Algorithm.DFLASH,
    ),
    Profile(name="kimi-ar", description="Kimi-K2.6 without a drafter", target="moonshotai/Kimi-K2.6"),
    Profile(
        name="qwen-ddtree32",
        description="Qwen3-8B on one H200",
        target="Qwen/Qwen3-8B",
        budget=32,
        topk=8,
        algorithm=Algorithm.DDTREE,
        drafter="z-lab/Qwen3-8B-DFlash",
    ),
)


class FakeProfiles:
    def __init__(self, profiles: Sequence[Profile] = PROFILES) -> None:
        self._profiles = {p.name: p for p in profiles}

    def names(self) -> tuple[ProfileSummary, ...]:
        good = [
            ProfileSummary(name=p.name, description=p.description, origin="shipped", shipped=True)
            for p in self._profiles.values()
        ]
        bad = ProfileSummary(
            name="kimi-old",
            origin="~/p/kimi-old.toml",
            problem="kimi-old.toml:7: unknown key 'buget' (budget?)",
        )
        return (*good, bad)

    def get(self, name: str) -> Profile:
        try:
            return self._profiles[name]
        except KeyError:
            raise UsageError(f"no profile is called {name}", next_step="see `profiles list`") from None


COMMAND = (
    "/root/venv/bin/python -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 --host 127.0.0.1 "
    "--port 30000 --tp-size 8 --speculative-algorithm DFLASH --speculative-draft-model-path "
    "z-lab/Kimi-K2.6-DFlash --speculative-ddtree-budget 16 --speculative-ddtree-topk 8 "
    "--attention-backend triton --mem-fraction-static 0.82 --enable-metrics"
)


class FakeOperator:
    """Plans and runs without doing anything; ``gate`` holds the run until it is set."""

    def __init__(self, *, read_only: bool = False, danger: bool = False) -> None:
        self.read_only = read_only
        self.danger = danger
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse: dict[Action, str] = {}
        self.executed: list[Plan] = []
        self.planned: list[tuple[Action, str, str | None]] = []
        self.outcome = Outcome(
            ok=True,
            summary="kimi-a serves kimi-ddtree16",
            granted=(
                Granted(name="speculative-ddtree-budget", asked="16", granted="16", ok=True),
                Granted(name="mem-fraction-static", asked="0.82", granted="0.82", ok=True),
                Granted(name="window", asked="config (2048)", granted="2048", ok=True),
                Granted(name="attention-backend", asked="triton", granted="fa3", ok=False),
            ),
        )

    def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
        if self.read_only:
            return Decision(allowed=False, reason="the console was started with --read-only")
        if action in self.refuse:
            return Decision(allowed=False, reason=self.refuse[action])
        return Decision(allowed=True)

    async def plan(self, action: Action, server: str, profile: str | None = None) -> Plan:
        self.planned.append((action, server, profile))
        chosen = next((p for p in PROFILES if p.name == profile), PROFILES[0])
        warnings = [PlanWarning(text="KV pool shrinks 232k → 214k tokens (estimate)")]
        if self.danger:
            warnings.append(
                PlanWarning(text="--trust-remote-code runs code from the model folder", dangerous=True)
            )
        return Plan(
            server=server,
            host="gpu1",
            action=action,
            profile=chosen,
            from_profile="kimi-ddtree8",
            changes=(
                Change(
                    name="speculative-ddtree-budget", before="8", after=str(chosen.budget or "–"), how="live"
                ),
                Change(name="mem-fraction-static", before="0.85", after="0.82"),
                Change(name="disable-cuda-graph", before=None, after="true"),
            ),
            argv=tuple(COMMAND.split()),
            command=COMMAND,
            live=False,
            warnings=tuple(warnings),
            memory_forecast=("weights 72.5 GiB · KV 13.4 GiB · graphs 1.9 GiB · free 7.8 GiB per GPU",),
            expected_s=660.0,
        )

    async def execute(self, plan: Plan) -> AsyncIterator[Step | Outcome]:
        self.executed.append(plan)
        yield Step(name="drain", state="done", text="0 left", at=NOW)
        yield Step(name="stop", state="done", at=NOW)
        yield Step(name="memory free", state="done", at=NOW)
        yield Step(name="launch", state="done", at=NOW)
        yield Step(name="weights", state="running", text="46/64 shards", progress=0.71, at=NOW)
        await self.gate.wait()
        yield Step(name="weights", state="done", text="64/64 shards", at=NOW)
        yield Step(name="graphs", state="done", text="24/24", at=NOW)
        yield Step(name="probe", state="done", at=NOW)
        yield Step(name="read back", state="done", at=NOW)
        yield self.outcome


LOG = tuple(
    [
        "[2026-11-30 12:29:31] server_args=ServerArgs(model_path='moonshotai/Kimi-K2.6', tp_size=8, …)",
        "[2026-11-30 12:29:44 TP0] Init torch distributed begin.",
        "[2026-11-30 12:30:02 TP0] Load weight begin. avail mem=93.91 GB",
        "[2026-11-30 12:36:40 TP0] Load weight end. type=KimiK2ForCausalLM, avail mem=21.40 GB.",
        "[2026-11-30 12:36:41 TP0] KV Cache is allocated. #tokens: 232448",
        "[2026-11-30 12:36:42 TP0] WARNING: the drafter's config declares a sliding window of 2048",
        "[2026-11-30 12:37:20 TP0] Capture cuda graph end. Time elapsed: 36.91 s",
        "[2026-11-30 12:37:25] The server is fired up and ready to roll!",
        "[2026-11-30 12:39:10 TP0] ERROR: request 7f3a aborted: client closed the connection",
    ]
    + [
        f"[2026-11-30 12:40:{s:02d} TP0] Decode batch, #running-req: 2, #token: {71000 + s * 31}, "
        f"token usage: 0.31, "
        f"accept len: {4.2 + (s % 5) / 20:.2f}, gen throughput (token/s): {146 + s % 7}.{s % 10}, "
        "#queue-req: 0"
        for s in range(0, 60, 4)
    ]
)


class FakeLogs:
    """A log source that gives its lines and then what is pushed."""

    def __init__(self, lines: Sequence[str] = LOG) -> None:
        self.lines = list(lines)
        self.queue: asyncio.Queue[list[str] | None] = asyncio.Queue()

    async def follow(self, server: str) -> AsyncIterator[list[str]]:
        if server not in ("kimi-a", "kimi-b", "cpu-demo", "broken"):
            raise UsageError(f"{server} has no run on its host yet", next_step="start it first")
        yield list(self.lines)
        while (batch := await self.queue.get()) is not None:
            yield batch


class FakeBench:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def _state(self, running: bool) -> BenchState:
        cells = [
            BenchCell(
                key="a",
                arm="AR",
                point="ctx 2k · conc 1",
                state="done",
                tok_s=41.2,
                ttft_p50_ms=182,
                ttft_p99_ms=260,
                itl_p50_ms=24.1,
                itl_p99_ms=29.8,
                accept_length=1.0,
                done=16,
                total=16,
            ),
            BenchCell(
                key="b",
                arm="DDTREE 8",
                point="ctx 2k · conc 1",
                state="done",
                tok_s=148.9,
                ttft_p50_ms=190,
                ttft_p99_ms=301,
                itl_p50_ms=6.7,
                itl_p99_ms=11.2,
                accept_length=4.36,
                done=16,
                total=16,
            ),
            BenchCell(
                key="c",
                arm="DDTREE 8",
                point="ctx 2k · conc 4",
                state="unclean",
                tok_s=402.7,
                ttft_p50_ms=244,
                ttft_p99_ms=1980,
                itl_p50_ms=9.8,
                itl_p99_ms=31.0,
                accept_length=4.11,
                done=64,
                total=64,
                flags=("2 requests retracted",),
            ),
            BenchCell(
                key="d",
                arm="DDTREE 8",
                point="ctx 8k · conc 4",
                state="running" if running else "done",
                progress=0.43,
                tok_s=377.0,
                accept_length=4.02,
                done=27,
                total=64,
            ),
            BenchCell(
                key="e",
                arm="DDTREE 8",
                point="ctx 8k · conc 8",
                state="waiting" if running else "failed",
                total=128,
                message="" if running else "server answered 503 to 12 of 128 requests",
            ),
        ]
        return BenchState(
            run_id="b-20261130-1239",
            job="first-light",
            server="kimi-a",
            cells=tuple(cells),
            started_at=NOW - 190,
            eta_s=240.0 if running else None,
            ok=None if running else False,
        )

    async def jobs(self) -> tuple[BenchJob, ...]:
        return (
            BenchJob(name="first-light", description="AR against DDTREE, five cells", cells=5),
            BenchJob(name="quick", description="one cell", cells=1),
            BenchJob(name="broken-job", problem="broken-job.toml:3: concurrency must be at least 1"),
        )

    async def runs(self) -> tuple[BenchState, ...]:
        return (replace(self._state(False), run_id="b-20261129-0901", finished_at=NOW - 86400),)

    async def run(self, job: str, server: str) -> AsyncIterator[BenchState]:
        yield self._state(True)
        await self.gate.wait()
        yield self._state(False)


class FakeHosts:
    def __init__(self) -> None:
        self.trusted: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.retried: list[str] = []

    async def offered_key(self, host: str) -> KeyOffer:
        return KeyOffer(
            host=host,
            address=f"{host}.example.org:22",
            key_type="ssh-ed25519",
            fingerprint="SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE",
            compare_with="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )

    async def trust(self, host: str, fingerprint: str) -> None:
        self.trusted.append((host, fingerprint))

    async def forget(self, host: str) -> None:
        self.forgotten.append(host)

    async def retry(self, host: str) -> None:
        self.retried.append(host)

    async def check(self, host: str) -> AsyncIterator[Finding]:
        yield Finding(name="ssh", level="ok", text="OpenSSH_9.6, ed25519 key known")
        yield Finding(name="python", level="ok", text="3.11.9 in /root/venv")
        yield Finding(
            name="sglang",
            level="warning",
            text="0.5.11 does not know --speculative-ddtree-budget",
            next_step="pip install -U 'sglang>=0.5.20', or use a chain profile",
        )
        yield Finding(name="gpus", level="ok", text="8x NVIDIA RTX PRO 6000, driver 580.65")
        yield Finding(
            name="disk", level="failed", text="1.2 GiB free in /root/.cache", next_step="free at least 40 GiB"
        )
        yield Finding(name="systemd", level="info", text="user services: yes, linger: no")


def fake_services(**changes: object) -> Services:
    """The bundle for tests; anything can be replaced by name."""
    values: dict[str, object] = {
        "fleet": FakeFleet(),
        "operator": FakeOperator(read_only=bool(changes.get("read_only"))),
        "logs": FakeLogs(),
        "profiles": FakeProfiles(),
        "bench": FakeBench(),
        "hosts": FakeHosts(),
        "clock": Clock(),
        "pinned": ("kimi-ddtree8", "kimi-ddtree16"),
        "save_dir": Path("/nonexistent/not-set-by-the-test"),
        "log_dir": Path("/nonexistent/not-set-by-the-test"),
    }
    return Services(**{**values, **changes})  # type: ignore[arg-type]
