"""The real SGLang as a run: its processes are found whatever they call themselves, and all of them go."""

from __future__ import annotations

import fcntl
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError
from dflash_backend.core.samples import RunStatus
from dflash_backend.hostside import _members, _procs
from dflash_backend.runs.contract import LaunchSpec
from dflash_backend.runs.rows import explain_exit
from dflash_backend.runs.service import HostRuns
from rigs.run_host import Host, gone, until
from rigs.sglang_cpu.rig import LOCK, START_S, SglangRig
from rigs.sshd import free_port

TARGET = Path(__file__).parents[2] / "backend" / "dflash_engine" / "data" / "reference_pair" / "target"

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(2 * START_S)]


@pytest.fixture
def rig() -> Iterator[SglangRig]:
    """One server at a time on this machine."""
    value = SglangRig("0.5.11").require()
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield value


async def served(rig: SglangRig, host: Host, runs: HostRuns) -> tuple[RunStatus, LaunchSpec]:
    """A run that answers requests."""
    port = free_port()
    while port > 50_000:  # SGLang derives further ports by adding 10,000
        port = free_port()
    argv = [str(rig.python), "-m", "sglang.launch_server", *rig.arguments(TARGET, port)]
    spec = host.spec(argv=argv, port=port, env={"PYTHONWARNINGS": "ignore"}, cwd="/")
    run = await runs.launch(spec)

    def answers() -> bool:
        assert not gone(run.pid or 0), Path(run.log_path).read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    await until(answers, deadline=START_S)
    return run, spec


def family(run: RunStatus) -> list[_procs.Process]:
    """Launcher, scheduler, detokenizer and helpers, found by the mark in their environment alone."""
    return _members.Tracker(run.run_id, None, None).living()


async def test_a_stop_takes_launcher_scheduler_and_detokenizer(
    rig: SglangRig, host: Host, runs: HostRuns
) -> None:
    run, _ = await served(rig, host, runs)
    found = family(run)
    # SGLang renames its processes, which overwrites the environment in /proc unless it is told not to.
    assert len(found) >= 3, found
    assert {one.pgrp for one in found} == {run.pgid}
    assert any("scheduler" in " ".join([one.name, *_procs.arguments(one.pid)]) for one in found)
    report = await runs.stop(run.run_id, grace_s=60)
    assert report.complete, report
    assert not report.killed
    assert all(gone(one.pid) for one in found)
    (after,) = await runs.list_runs()
    assert after.exit_code in (0, 137, 143)
    assert explain_exit(after).startswith("stopped")


async def test_what_a_killed_launcher_leaves_behind_is_found_and_removed(
    rig: SglangRig, host: Host, runs: HostRuns
) -> None:
    run, spec = await served(rig, host, runs)
    found = family(run)
    others = [one.pid for one in found if one.pid != run.pid]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)  # so that they cannot notice that the launcher is gone
    os.kill(run.pid or 0, signal.SIGKILL)
    await until(lambda: os.path.exists(os.path.join(run.folder, "exit")))
    (after,) = await runs.list_runs()
    assert (after.alive, after.exit_code) == (False, 137)
    # Scheduler and detokenizer ask the kernel to die with the launcher; its resource tracker does not.
    assert after.left >= 1
    with pytest.raises(FailedError, match="of its processes are left"):
        await runs.launch(spec)
    report = await runs.stop(run.run_id, grace_s=5)
    assert report.complete, report
    assert all(gone(one.pid) for one in found)
