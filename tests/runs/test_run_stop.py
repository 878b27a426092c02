"""Stopping: everything of the run goes, nothing else is touched, and what is said is proven."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError, RefusedError, UsageError
from dflash_backend.core.samples import RunStatus
from dflash_backend.hostside import _procs
from dflash_backend.runs.rows import explain_exit
from dflash_backend.runs.service import HostRuns
from rigs.run_host import Host, gone, until
from rigs.sshd import poll_until


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that no run started, leader of its own group."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_stop_takes_the_whole_family_and_proves_it(runs: HostRuns, host: Host) -> None:
    spec = host.spec("child", "orphan", "own-session")
    run = await runs.launch(spec)
    family = host.family(spec)
    assert len(family) == 4
    report = await runs.stop(run.run_id, grace_s=20)
    assert report.complete
    assert (report.exit_code, report.killed, report.group_gone, report.port_free) == (143, False, True, True)
    assert all(gone(pid) for pid in family.values())
    (after,) = await runs.list_runs()
    assert not after.alive
    assert after.stop_requested_at is not None
    assert after.exited_at is not None
    assert explain_exit(after) == "stopped"


CLEAN_CHILD = """
import json, os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, env={}, start_new_session=True)
with open(sys.argv[1] + ".new", "w") as stream:
    json.dump({"server": os.getpid(), "clean": child.pid}, stream)
os.replace(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


async def test_descendants_seen_before_the_end_are_followed_without_any_mark(
    runs: HostRuns, host: Host
) -> None:
    """A process that left group, session and environment is still known while its parent lives."""
    spec = host.spec()
    pids = spec.argv[3]
    run = await runs.launch(host.spec(argv=[sys.executable, "-c", CLEAN_CHILD, pids]))
    poll_until(lambda: os.path.exists(pids), what="the pids")
    family = json.loads(Path(pids).read_text())
    report = await runs.stop(run.run_id, grace_s=20)
    assert report.group_gone
    assert all(gone(pid) for pid in family.values())


async def test_who_ignores_term_is_killed_after_the_grace(runs: HostRuns, host: Host) -> None:
    spec = host.spec("child", "orphan", "own-session", "ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    report = await runs.stop(run.run_id, grace_s=0.5)
    assert report.complete
    assert report.killed
    assert report.exit_code == 137
    assert report.seconds >= 0.5
    assert all(gone(pid) for pid in family.values())
    (after,) = await runs.list_runs()
    assert explain_exit(after).startswith("stopped")


async def test_a_suspended_server_is_woken_to_obey(runs: HostRuns, host: Host) -> None:
    spec = host.spec("child")
    run = await runs.launch(spec)
    family = host.family(spec)
    for pid in family.values():
        os.kill(pid, signal.SIGSTOP)
    report = await runs.stop(run.run_id, grace_s=20)
    assert report.complete
    assert (report.killed, report.exit_code) == (False, 143)


@pytest.mark.parametrize("grace", [-1.0, float("nan"), float("inf"), 1e9])
async def test_impossible_graces_are_refused(runs: HostRuns, host: Host, grace: float) -> None:
    with pytest.raises(UsageError, match="grace"):
        await runs.stop("20261130T000000Z-00000000", grace_s=grace)


async def test_orphans_of_a_crashed_server_are_shown_and_removed(runs: HostRuns, host: Host) -> None:
    """The scheduler that outlives its launcher keeps the GPU: it is still the run's, by its group."""
    spec = host.spec("orphan", "crash")
    run = await runs.launch(spec)
    family = host.family(spec)
    poll_until(lambda: os.path.exists(os.path.join(run.folder, "exit")), what="the recorded exit")
    (after,) = await runs.list_runs()
    assert not after.alive
    assert after.exit_code == 137
    assert "1 of its processes are left" in after.note
    assert after.left == 1
    with pytest.raises(FailedError, match="1 of its processes are left"):
        await runs.launch(host.spec())
    assert "out of memory" in explain_exit(after)
    with pytest.raises(RefusedError, match="lives"):
        await runs.forget(run.run_id)
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.complete
    assert gone(family["orphan"])


async def test_stopping_again_says_the_same_and_signals_nobody(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    host.family(spec)
    first = await runs.stop(run.run_id, grace_s=10)
    assert await runs.stop(run.run_id, grace_s=10) == first


async def test_stop_of_a_run_that_ended_by_itself(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    run = await runs.launch(host.spec("exit=3"))
    over(run)
    report = await runs.stop(run.run_id)
    assert report.complete
    assert (report.exit_code, report.killed) == (3, False)


async def test_a_recycled_pid_is_never_signalled(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None], stranger: subprocess.Popen[bytes]
) -> None:
    run = await runs.launch(host.spec("exit=0"))
    over(run)
    forge(run, pid=stranger.pid, pgid=stranger.pid, session=stranger.pid)
    (Path(run.folder) / "exit").unlink()
    (row,) = await runs.list_runs()
    assert not row.alive
    report = await runs.stop(run.run_id, grace_s=0.2)
    assert stranger.poll() is None
    assert report.group_gone
    assert any(f"pid {stranger.pid} belongs to another process now" in note for note in report.notes)


LEAVE_A_MEMBER = """
import os, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


async def test_a_recycled_group_is_never_signalled(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None], stranger: subprocess.Popen[bytes]
) -> None:
    """The leader is gone and its group's number is somebody else's now, who began after our exit."""
    run = await runs.launch(host.spec("exit=0"))
    over(run)
    leader = subprocess.Popen(
        [sys.executable, "-c", LEAVE_A_MEMBER], start_new_session=True, stdout=subprocess.PIPE
    )
    assert leader.stdout is not None
    member = int(leader.stdout.readline())
    leader.wait()
    try:
        forge(run, pid=leader.pid, pgid=leader.pid, session=leader.pid)
        await runs.stop(run.run_id, grace_s=0.2)
        assert not gone(member)
    finally:
        os.kill(member, signal.SIGKILL)


async def test_after_a_reboot_nothing_is_signalled(
    runs: HostRuns, host: Host, stranger: subprocess.Popen[bytes]
) -> None:
    """Pid and start time could agree by chance: the boot id does not."""
    run = await runs.launch(host.spec("exit=0"))
    poll_until(lambda: os.path.exists(os.path.join(run.folder, "exit")), what="the recorded exit")
    (Path(run.folder) / "exit").unlink()
    process = _procs.process(stranger.pid)
    assert process is not None
    forge(
        run, pid=stranger.pid, pgid=stranger.pid, session=stranger.pid, start=process.start, boot_id="earlier"
    )
    (row,) = await runs.list_runs()
    assert not row.alive
    assert row.exit_code is None
    assert "rebooted" in row.note
    await runs.stop(run.run_id, grace_s=0.2)
    assert stranger.poll() is None


@pytest.mark.parametrize(
    "content", ["", "pid=", "pid=0\nstart=1\nboot_id=x\npgid=0\nsession=0\n", "\0\0\0", "pid=-1"]
)
async def test_a_damaged_identity_is_refused(runs: HostRuns, host: Host, content: str) -> None:
    run = await runs.launch(host.spec("exit=0"))
    poll_until(lambda: os.path.exists(os.path.join(run.folder, "exit")), what="the recorded exit")
    (Path(run.folder) / "pid").write_text(content)
    (row,) = await runs.list_runs()
    assert "pid file is damaged" in row.note
    with pytest.raises(RefusedError, match="nothing was signalled"):
        await runs.stop(run.run_id)


async def test_without_a_pid_file_the_mark_still_finds_the_processes(runs: HostRuns, host: Host) -> None:
    spec = host.spec("own-session")
    run = await runs.launch(spec)
    family = host.family(spec)
    (Path(run.folder) / "pid").write_text("garbage")
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.group_gone
    assert all(gone(pid) for pid in family.values())


async def test_a_folder_that_others_may_write_is_not_believed(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    family = host.family(spec)
    Path(run.folder).chmod(0o777)
    (row,) = await runs.list_runs()
    assert not row.alive
    assert "others may write to it" in row.note
    with pytest.raises(RefusedError, match="nothing was signalled"):
        await runs.stop(run.run_id)
    assert not gone(family["server"])


@pytest.mark.parametrize("run_id", ["", "..", "../../etc", "x", "20261130T000000Z-zzzzzzzz", "a\nb", "*"])
async def test_what_is_no_run_id_is_refused(runs: HostRuns, host: Host, run_id: str) -> None:
    with pytest.raises(UsageError, match="not a run id"):
        await runs.stop(run_id)
    with pytest.raises(UsageError, match="not a run id"):
        await runs.forget(run_id)


async def test_an_unknown_run_is_said(runs: HostRuns, host: Host) -> None:
    with pytest.raises(UsageError, match="no run"):
        await runs.stop("20261130T000000Z-00000000")


async def test_a_port_that_somebody_else_took_is_in_the_report(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    host.family(spec)
    assert (await runs.stop(run.run_id, grace_s=10)).complete
    (Path(run.folder) / "stopped").unlink()
    with socket.create_server(("127.0.0.1", spec.port)):
        report = await runs.stop(run.run_id)
    assert report.group_gone
    assert not report.port_free
    assert not report.complete
    assert any(f"port {spec.port} is held by pid {os.getpid()}" in note for note in report.notes)


async def test_a_second_stop_can_hurry_the_first(runs: HostRuns, host: Host) -> None:
    spec = host.spec("ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    patient = asyncio.create_task(runs.stop(run.run_id, grace_s=300))
    await until(lambda: os.path.exists(os.path.join(run.folder, "stop")))
    began = time.monotonic()
    hasty = await runs.stop(run.run_id, grace_s=0)
    assert hasty.complete
    assert hasty.killed
    assert gone(family["server"])
    assert time.monotonic() - began < 60
    assert await patient == hasty


async def test_forget_removes_the_folder_of_a_run_that_is_over(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    host.family(spec)
    with pytest.raises(RefusedError, match="stop it first"):
        await runs.forget(run.run_id)
    await runs.stop(run.run_id, grace_s=10)
    await runs.forget(run.run_id)
    assert await runs.list_runs() == ()
    assert not Path(run.folder).exists()


async def test_forget_does_not_follow_a_link_out(runs: HostRuns, host: Host, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    host.root.mkdir(parents=True, mode=0o700)
    (host.root / "20261130T000000Z-00000000").symlink_to(precious)
    (row,) = await runs.list_runs()
    assert "is a link" in row.note
    await runs.forget("20261130T000000Z-00000000")
    assert (precious / "file").exists()
    assert await runs.list_runs() == ()


def forge(run: RunStatus, **changes: int | str) -> None:
    """Writes another identity into the pid file of a run."""
    file = Path(run.folder) / "pid"
    entries: dict[str, int | str] = dict(line.split("=") for line in file.read_text().split())
    file.write_text("".join(f"{key}={value}\n" for key, value in {**entries, **changes}.items()))
