"""Following a log: clean lines, none twice, none lost, whatever happens to the file and however fast."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError, UnreachableError, UsageError
from dflash_backend.core.samples import RunStatus
from dflash_backend.core.text import MAX_LINE
from dflash_backend.runs.service import HostRuns
from rigs.run_host import Host, until


class Follower:
    """Reads a log in the background."""

    def __init__(self, batches: AsyncIterator[list[str]]) -> None:
        self.lines: list[str] = []
        self.batches = 0
        self.task = asyncio.create_task(self._read(batches))

    async def _read(self, batches: AsyncIterator[list[str]]) -> None:
        async for batch in batches:
            self.batches += 1
            self.lines += batch

    async def has(self, line: str, deadline: float = 15.0) -> None:
        """Waits for a line."""
        try:
            await until(lambda: line in self.lines or self.task.done(), deadline=deadline)
        except TimeoutError:
            raise AssertionError(f"{line!r} is not among {self.lines[-20:]}") from None
        assert line in self.lines, self.lines[-20:]

    async def stop(self) -> None:
        """Ends the following."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def serving(runs: HostRuns, host: Host) -> tuple[RunStatus, Path]:
    """A run that is up and says no more, and its log."""
    spec = host.spec()
    run = await runs.launch(spec)
    host.family(spec)
    log = Path(run.log_path)
    await until(lambda: b"listening\n" in log.read_bytes())
    return run, log


def say(log: Path, text: str | bytes) -> None:
    """Appends to the log as the server does."""
    with log.open("ab") as stream:
        stream.write(text.encode() if isinstance(text, str) else text)


async def test_end_first_then_what_comes(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    await follower.has("listening")
    say(log, "half a li")
    say(log, "ne\nand one more\n")
    await follower.has("and one more")
    assert follower.lines == ["listening", "half a line", "and one more"]
    await follower.stop()
    await until(lambda: not host.sshd.commands())


async def test_without_follow_it_ends_at_the_end(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    say(log, "no line end")
    lines = [line async for batch in runs.follow_log(run.run_id, follow=False) for line in batch]
    assert lines == ["listening", "no line end"]


async def test_following_ends_when_the_run_is_over(runs: HostRuns, host: Host) -> None:
    run, _ = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    await follower.has("listening")
    await runs.stop(run.run_id, grace_s=5)
    async with asyncio.timeout(15):
        await follower.task


@pytest.mark.parametrize(
    ("last_bytes", "expected"),
    [
        (0, []),
        (6, []),
        (7, ["line 9"]),
        (13, ["line 9"]),
        (14, ["line 8", "line 9"]),
        (69, [f"line {number}" for number in range(1, 10)]),
        (70, [f"line {number}" for number in range(10)]),
        (1 << 40, [f"line {number}" for number in range(10)]),
    ],
)
async def test_tail_begins_with_a_whole_line(
    runs: HostRuns, host: Host, last_bytes: int, expected: list[str]
) -> None:
    run, log = await serving(runs, host)
    log.write_text("".join(f"line {number}\n" for number in range(10)))
    batches = runs.follow_log(run.run_id, last_bytes=last_bytes, follow=False)
    assert [line async for batch in batches for line in batch] == expected


async def test_tail_reaches_into_the_rotated_log(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    log.with_name("log.1").write_text("".join(f"old {number}\n" for number in range(10)))
    log.write_text("new 0\n")
    batches = runs.follow_log(run.run_id, last_bytes=6 + 13, follow=False)
    assert [line async for batch in batches for line in batch] == ["old 8", "old 9", "new 0"]


@pytest.mark.parametrize("how", ["truncated", "replaced", "deleted and made again", "rotated by copy"])
async def test_it_survives_what_happens_to_the_file(runs: HostRuns, host: Host, how: str) -> None:
    run, log = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    say(log, "before, and long enough to be longer than what comes after\n" * 3)
    await follower.has("before, and long enough to be longer than what comes after")
    if how == "truncated":
        os.truncate(log, 0)
    elif how == "replaced":
        log.rename(log.with_name("log.1"))
        log.touch()
    elif how == "deleted and made again":
        log.unlink()
        await asyncio.sleep(0.3)
        log.touch()
    else:
        say(log, "the last before the rotation\n")
        log.with_name("log.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
    say(log, "after\n")
    await follower.has("after")
    say(log, "after that\n")
    await follower.has("after that")
    expected = ["listening", *["before, and long enough to be longer than what comes after"] * 3]
    if how == "rotated by copy":
        expected.append("the last before the rotation")
    assert follower.lines == [*expected, "after", "after that"]
    await follower.stop()


TALKATIVE = """
import sys, time
for number in range(60000):
    print(f"{number:06d} " + "x" * 60)
    if number % 200 == 199:
        sys.stdout.flush()
        time.sleep(0.03)
print("the end", flush=True)
time.sleep(600)
"""


async def test_supervisor_keeps_the_log_under_its_cap_and_no_line_is_lost(runs: HostRuns, host: Host) -> None:
    """A server that prints far more than the cap, followed across the rotations."""
    run = await runs.launch(host.spec(argv=[sys.executable, "-c", TALKATIVE], log_cap_mib=1))
    follower = Follower(runs.follow_log(run.run_id, last_bytes=1 << 30))
    await follower.has("the end", deadline=60)
    await until(lambda: (Path(run.folder) / "log.1").exists())
    numbers = [int(line[:6]) for line in follower.lines if line[0] == "0"]
    assert numbers == sorted(set(numbers))
    # Between the last copy and the cut some lines may go; not more than one flush of the server.
    assert len(numbers) >= 60000 - 400
    await follower.stop()


async def test_hostile_bytes(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    await follower.has("listening")
    say(log, b"title \x1b]0;owned\x07 clip \x1b]52;c;aGk=\x1b\\ \x9b2J csi \x1b[2J\x1b[31mred\x1b[0m\n")
    say(log, b"invalid \xff\xfe utf8 \xe2\x82\n")
    say(log, "bidi \u202e zero \u200b markup [/foo] [red]\n")
    say(log, b"--api-key sk-live-0123456789abcdef api_key='hunter22' HF_TOKEN=hf_abcdefghijklmnopqrstuv\n")
    say(log, b"nul \0 bell \x07 back \x08\n")
    say(log, b"progress 1%\rprogress 2%\rprogress 3%\n")
    say(log, b"x" * (1 << 20) + b"\nafter the long line\n")
    await follower.has("after the long line")
    text = "\n".join(follower.lines)
    assert not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)
    assert "owned" not in text
    assert "aGk" not in text
    assert "\u202e" not in text
    assert "hunter22" not in text
    assert "sk-live" not in text
    assert "hf_abc" not in text
    assert "invalid \ufffd\ufffd utf8 \ufffd" in follower.lines
    assert "bidi  zero  markup [/foo] [red]" in follower.lines
    assert follower.lines[follower.lines.index("progress 1%") + 1] == "progress 2%"
    assert max(map(len, follower.lines)) < MAX_LINE + 100
    await follower.stop()


async def test_an_escape_split_over_two_writes_is_still_removed(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    await follower.has("listening")
    for part in (b"a\x1b]5", b"2;c;aGk", b"=\x07b\n\xe2", b"\x82", b"\xac\n"):
        say(log, part)
        await asyncio.sleep(0.15)  # lets each part travel alone; nothing depends on it
    await follower.has("€")
    assert follower.lines == ["listening", "ab", "€"]
    await follower.stop()


async def test_a_fast_log_is_kept_up_with_in_few_batches(runs: HostRuns, host: Host) -> None:
    """100,000 lines: all arrive, in order, in batches a screen can draw."""
    spec = host.spec("lines=100000")
    run = await runs.launch(spec)
    began = time.monotonic()
    follower = Follower(runs.follow_log(run.run_id, last_bytes=1 << 30))
    await follower.has("listening", deadline=60)
    seconds = time.monotonic() - began
    numbers = [int(line[5:13]) for line in follower.lines if line.startswith("line ")]
    assert numbers == list(range(100000))
    assert follower.batches <= 60 * seconds + 100000 / 4000 + 10
    await follower.stop()


async def test_a_slow_reader_holds_the_host_up_and_not_our_memory(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    with log.open("ab") as stream:
        for number in range(1_000_000):
            stream.write(b"line %07d %s\n" % (number, b"x" * 90))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batches = runs.follow_log(run.run_id, last_bytes=1 << 30)
    assert (await anext(batches))[0] == "listening"
    await asyncio.sleep(1.0)  # what a greedy reader would use to fill its memory
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024
    (helper,) = [
        pid for pid in host.sshd.commands() if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    rss = int(Path(f"/proc/{helper}/statm").read_text().split()[1]) * 4096
    assert rss < 60 << 20
    await batches.aclose()  # type: ignore[attr-defined]


async def test_since_begins_at_the_first_stamped_line_of_that_time(runs: HostRuns, host: Host) -> None:
    run, log = await serving(runs, host)
    now = time.time()
    with log.open("w") as stream:
        for age in range(50_000, 0, -1):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - age))
            stream.write(f"[{stamp} TP0] Decode batch, {age} seconds old\n  a line without a stamp\n")
    lines = [line async for batch in runs.follow_log(run.run_id, follow=False, since_s=600) for line in batch]
    ages = [int(line.split("batch, ")[1].split()[0]) for line in lines if "batch" in line]
    assert 585 <= ages[0] <= 600
    assert ages == list(range(ages[0], 0, -1))
    assert [
        line async for batch in runs.follow_log(run.run_id, follow=False, since_s=0) for line in batch
    ] == []
    everything = [
        line async for batch in runs.follow_log(run.run_id, follow=False, since_s=1e6) for line in batch
    ]
    assert len(everything) == 100_000


async def test_log_of_a_finished_run(runs: HostRuns, host: Host, over: Callable[[RunStatus], None]) -> None:
    run = await runs.launch(host.spec("exit=1", "lines=3"))
    over(run)
    lines = [line async for batch in runs.follow_log(run.run_id) for line in batch]
    assert len(lines) == 4
    assert lines[-1] == "last words"


async def test_missing_log_and_missing_run(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    run = await runs.launch(host.spec("exit=1"))
    over(run)
    Path(run.log_path).unlink()
    with pytest.raises(FailedError, match="no log at"):
        await anext(runs.follow_log(run.run_id, follow=False))
    with pytest.raises(UsageError, match="no run"):
        await anext(runs.follow_log("20261130T000000Z-00000000"))


async def test_a_lost_connection_is_said(runs: HostRuns, host: Host) -> None:
    run, _ = await serving(runs, host)
    follower = Follower(runs.follow_log(run.run_id))
    await follower.has("listening")
    host.sshd.drop_connections()
    with pytest.raises(UnreachableError):
        await asyncio.wait_for(follower.task, 15)
