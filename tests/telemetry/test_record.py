"""Recording and replay: what comes back is what was seen, whatever happened to the file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import ConfigError, FailedError, UsageError
from dflash_backend.core.profile import Algorithm
from dflash_backend.core.samples import (
    EffectiveSettings,
    GpuProcess,
    GpuSample,
    LinkStatus,
    RunStatus,
    ServerFigures,
    ServerSnapshot,
    Snapshot,
    Stage,
)
from dflash_backend.core.states import LinkState, ServerState, StageName
from dflash_backend.telemetry import record as record_module
from dflash_backend.telemetry.broadcast import Newest
from dflash_backend.telemetry.contract import Mark, Series, SeriesName
from dflash_backend.telemetry.record import Packer, Recording, Unpacker, _added, record
from dflash_backend.telemetry.replay import Replay
from dflash_backend.telemetry.snapshot_json import snapshot_from_json, snapshot_to_json

START = 1_767_225_600.125


def gpu(index: int = 0, used: float | None = 1024.5) -> GpuSample:
    return GpuSample(
        index=index,
        name="NVIDIA H200",
        uuid=f"GPU-{index}",
        memory_used_mib=used,
        memory_total_mib=143771.0,
        utilization_pct=37.0,
        power_w=250.0,
        temperature_c=41.0,
        health="ok",
        processes=(GpuProcess(pid=1, name="python", memory_mib=5.0, user="me"),),
    )


def ready(at: float, tail: str = "one\ntwo", rate: float | None = 148.25) -> ServerSnapshot:
    return ServerSnapshot(
        name="kimi",
        host="gpu1",
        port=30000,
        state=ServerState.READY,
        profile="kimi-ddtree8",
        algorithm=Algorithm.DDTREE,
        window=2048,
        budget=8,
        topk=8,
        figures=ServerFigures(
            server="kimi",
            at=at - 0.5,
            decode_tok_s=rate,
            decode_source="counter",
            accept_length=4.3125,
            running=2,
            queued=0,
            token_usage=0.5,
            notes={"prefill_tok_s": "first value: a rate needs two"},
        ),
        settings=EffectiveSettings(
            version="0.5.14", algorithm=Algorithm.DDTREE, budget=8, raw={"tp_size": 8, "list": [1, 2]}
        ),
        gpus=(gpu(0), gpu(1, None)),
        run=RunStatus(
            run_id="r1",
            server="kimi",
            folder="/r1",
            manager="setsid",
            profile="kimi-ddtree8",
            profile_toml="a = 1",
            argv=("python", "-m", "x"),
            alive=True,
            started_at=START - 100,
            log_size=len(tail),
            log_tail=tail,
            gpus=(0, 1),
        ),
        rss_mib=2000.25,
        at=at - 0.25,
    )


def plain(name: str, state: ServerState, **more: object) -> ServerSnapshot:
    return ServerSnapshot(name=name, host="gpu9", port=30001, state=state, **more)  # type: ignore[arg-type]


def snapshot(at: float, *servers: ServerSnapshot) -> Snapshot:
    links = (LinkStatus(host="gpu1", state=LinkState.UP, since=START, last_seen=at - 0.1),)
    return Snapshot(at=at, servers=servers, hosts=links)


def session() -> list[Snapshot]:
    """A start, a run with a growing log, a lost host, a failure."""
    stage = Stage(name=StageName.GRAPHS, done=14, total=24)
    seen = [
        snapshot(START, plain("kimi", ServerState.UNKNOWN, message="connecting")),
        snapshot(START + 1, plain("kimi", ServerState.STARTING, stage=stage, at=START + 0.9)),
    ]
    log = [f"line {i} " + "x" * (i % 50) for i in range(400)]
    for i in range(2, 30):
        tail = "\n".join(log[: i * 12])[-8000:]
        seen.append(snapshot(START + i, ready(START + i, tail, None if i == 5 else 100.0 + i)))
    seen.append(
        snapshot(
            START + 30, plain("kimi", ServerState.UNREACHABLE, message="last seen 4 min ago", at=START + 29)
        )
    )
    failed = replace(ready(START + 29).run, alive=False, exit_code=137, exited_at=START + 30.5)  # type: ignore[type-var]
    seen.append(
        snapshot(START + 31, plain("kimi", ServerState.FAILED, run=failed, message="exit 137 (SIGKILL)"))
    )
    return seen


class Played:
    """A fleet that goes through given snapshots as fast as they are taken."""

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self.snapshots = snapshots

    def snapshot(self) -> Snapshot:
        return self.snapshots[-1]

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        return Series(name=name)

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        return ()

    async def changes(self) -> AsyncIterator[Snapshot]:
        for one in self.snapshots:
            yield one

    async def start(self) -> None: ...

    async def close(self) -> None: ...


async def recorded(path: Path, snapshots: list[Snapshot]) -> Path:
    assert await record(Played(snapshots), path) == len(snapshots)
    return path


# The JSON form ----------------------------------------------------------------------------------------


def test_the_keys_of_the_json_form() -> None:
    made = snapshot_to_json(snapshot(START, ready(START), plain("b", ServerState.UNREACHABLE)))
    assert made["schema"] == 1
    assert made["at"] == "2026-01-01T00:00:00.125Z"
    first, second = made["servers"]
    expected = (
        "name host state stage profile algorithm window budget topk audit decode_tok_s accept_length running "
        "queued token_usage gpus rss_mib age_s message"
    ).split()
    assert list(first)[: len(expected)] == expected
    assert (first["state"], first["algorithm"], first["decode_tok_s"]) == ("ready", "DDTREE", 148.25)
    assert first["age_s"] == 0.25
    assert first["gpus"][0] == {
        "index": 0,
        "name": "NVIDIA H200",
        "memory_used_mib": 1024.5,
        "memory_total_mib": 143771.0,
        "utilization_pct": 37.0,
        "power_w": 250.0,
        "temperature_c": 41.0,
        "health": "ok",
    }
    assert first["gpus"][1]["memory_used_mib"] is None
    # What is not known is null, never 0.
    unknown = (
        "stage profile algorithm decode_tok_s accept_length running queued token_usage rss_mib age_s"
    ).split()
    assert [second[key] for key in unknown] == [None] * len(unknown)
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_json_without_detail_is_read_back_as_far_as_it_goes() -> None:
    stage = Stage(name=StageName.GRAPHS, done=14, total=24)
    before = snapshot(START, ready(START), plain("b", ServerState.STARTING, stage=stage))
    after = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(before))))
    assert after.at == START
    assert [s.state for s in after.servers] == [ServerState.READY, ServerState.STARTING]
    assert after.servers[1].stage == stage
    assert after.servers[0].figures is not None
    assert after.servers[0].figures.decode_tok_s == 148.25
    assert after.servers[0].at == pytest.approx(START - 0.25)
    assert after.hosts[0].state is LinkState.UP


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"schema": 2},
        {"schema": 1},
        {"schema": 1, "at": "x"},
        {"schema": 1, "at": "2026-01-01T00:00:00Z", "servers": 5},
        {"schema": 1, "at": "2026-01-01T00:00:00Z", "servers": [{"state": "odd"}]},
        {"schema": 1, "at": "2026-01-01T00:00:00Z", "servers": [], "hosts": [{}]},
    ],
)
def test_what_is_no_snapshot_is_a_plain_error(value: object) -> None:
    with pytest.raises(ConfigError):
        snapshot_from_json(value)


# There and back -------------------------------------------------------------------------------------


async def test_a_replay_equals_its_recording(tmp_path: Path) -> None:
    seen = session()
    path = await recorded(tmp_path / "r.ndjson", seen)
    assert list(Recording(path).snapshots()) == seen
    assert path.stat().st_mode & 0o777 == 0o600
    # The log tail is written as it grows, not again and again.
    assert path.stat().st_size < 200_000


texts = st.text(alphabet="ab\n", max_size=600)


@given(st.lists(texts, min_size=1, max_size=6), st.booleans())
def test_any_sequence_of_log_tails_comes_back(tails: list[str], grow: bool) -> None:
    whole = ""
    packer, unpacker = Packer(), Unpacker()
    for at, tail in enumerate(tails):
        whole = (whole + tail)[-700:] if grow else tail
        one = snapshot(START + at, ready(START + at, whole))
        assert unpacker.unpack(json.loads(json.dumps(packer.pack(one)))) == one


def test_what_was_added_to_a_tail() -> None:
    assert _added("abc", "abcdef") == "def"
    assert _added("x" * 300 + "end", "x" * 260 + "end" + "more") == "more"
    assert _added("abc", "xyz") is None
    assert _added("", "abc") is None


async def test_a_replay_plays_with_the_recorded_clock(tmp_path: Path) -> None:
    seen = session()
    path = await recorded(tmp_path / "r.ndjson", seen)
    replay = Replay(path, speed=500.0)
    assert replay.snapshot() == seen[0]
    assert replay.clock() == START
    got: list[Snapshot] = []
    await replay.start()

    async def watch() -> None:
        async for one in replay.changes():
            assert one.at <= replay.clock() + 1e-6
            got.append(one)

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(20):
        await replay.finished.wait()
    assert replay.snapshot() == seen[-1]
    assert replay.clock() == seen[-1].at
    series = replay.series("kimi", "decode_tok_s", since=0, points=999)
    assert series.times == tuple(s.at for s in seen)
    assert series.values[5] is None
    assert series.values[6] == 106.0
    memory = replay.series("kimi", "gpu_memory_mib", since=START + 2, points=999, gpu=0)
    assert memory.values[0] == 1024.5
    assert [m.text for m in replay.marks("kimi", since=0)] == ["start kimi-ddtree8", "ready", "failed"]
    await replay.close()
    await watching
    assert got[-1] == seen[-1]
    assert all(one in seen for one in got)


@pytest.mark.parametrize("speed", [0, -1, 1e9, float("nan")])
def test_an_impossible_speed_is_refused(tmp_path: Path, speed: float) -> None:
    with pytest.raises(UsageError):
        Replay(tmp_path / "x", speed=speed)


# Bad files -------------------------------------------------------------------------------------------


async def test_a_truncated_recording_gives_what_is_whole(tmp_path: Path) -> None:
    seen = session()
    path = await recorded(tmp_path / "r.ndjson", seen)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 40])
    recording = Recording(path)
    assert list(recording.snapshots()) == seen[:-1]
    assert recording.problems == [f"{path}:{len(seen) + 1}: left out: cut off"]


async def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    tails = ["\n".join(f"line {n}" for n in range(i)) for i in range(1, 200)]
    seen = [snapshot(START + i, ready(START + i, tail)) for i, tail in enumerate(tails)]
    path = await recorded(tmp_path / "r.ndjson", seen)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b"\x00\xff garbage\n"  # the first snapshot, which the next ones continue
    lines[100] = b"[" * 50_000 + b"\n"
    lines.insert(101, b"\n")
    path.write_bytes(b"".join(lines))
    recording = Recording(path)
    got = list(recording.snapshots())
    # What is shown is what was seen: a line that continues a lost one is left out as well.
    assert all(one in seen for one in got)
    assert recording.skipped == len(seen) - len(got)
    assert len(got) >= len(seen) - 2 * 60
    assert "not JSON" in recording.problems[0]
    assert "continues a line that is missing" in recording.problems[1]
    assert len(recording.problems) <= record_module.MAX_PROBLEMS


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"\x00" * 100, "not a recording"),
        (b'{"schema": 1}\n', "not a recording"),
        (b'{"schema": 7, "kind": "dflash-console-recording"}\n', "schema 7"),
        (b'{"schema": 1, "kind": "dflash-console-recording"}\n', "no snapshot"),
        (b'{"schema": 1, "kind": "dflash-console-recording"}\n{"schema"', "no snapshot"),
        (b"[" * 200_000, "not a recording"),
    ],
)
def test_what_is_no_recording_is_a_plain_error(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "r.ndjson"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=text) as caught:
        Replay(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_plain_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            Replay(path)


async def test_a_huge_line_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [snapshot(START + i, plain("a", ServerState.STOPPED)) for i in range(3)]
    path = await recorded(tmp_path / "r.ndjson", seen)
    lines = path.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(record_module, "MAX_LINE", 10_000)
    path.write_bytes(b"".join([*lines[:2], b"x" * 55_000 + b"\n", *lines[2:]]))
    recording = Recording(path)
    assert list(recording.snapshots()) == seen
    assert recording.skipped == 1


async def test_an_existing_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    path.write_text("mine")
    with pytest.raises(UsageError):
        await record(Played(session()), path)
    assert path.read_text() == "mine"
    assert await record(Played(session()), path, overwrite=True) == len(session())


async def test_a_folder_that_cannot_be_written_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(FailedError):
        await record(Played(session()), tmp_path / "nowhere" / "r.ndjson")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
async def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="No space left"):
        await record(Played(session()), Path("/dev/full"), overwrite=True)


async def test_no_secret_reaches_the_file(tmp_path: Path) -> None:
    server = ready(
        START, tail="started with --api-key sk-live-0123456789abcdef\nHF_TOKEN=hf_abcdefghijklmnopqrst"
    )
    assert server.settings is not None
    dirty = replace(
        server, settings=replace(server.settings, raw={"api_key": "topsecretvalue", "tp_size": 2})
    )
    path = tmp_path / "r.ndjson"
    await record(Played([snapshot(START, dirty)]), path)
    text = path.read_text()
    for secret in ("sk-live-0123456789abcdef", "hf_abcdefghijklmnopqrst", "topsecretvalue"):
        assert secret not in text


async def test_a_recording_of_a_given_length_ends_by_itself(tmp_path: Path) -> None:
    newest: Newest[Snapshot] = Newest()

    class Endless(Played):
        def changes(self) -> AsyncIterator[Snapshot]:  # type: ignore[override]
            return newest.read()

    newest.put(session()[0])
    assert await record(Endless([]), tmp_path / "r.ndjson", seconds=0.05) == 1


async def test_snapshots_that_come_too_fast_are_thinned(tmp_path: Path) -> None:
    fast = [snapshot(START + i * 0.25, plain("a", ServerState.STOPPED)) for i in range(40)]
    assert await record(Played(fast), tmp_path / "r.ndjson") == 10
