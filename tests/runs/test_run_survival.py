"""Runs outlive whoever started them: a killed console, a lost connection, a dead supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from dflash_backend.core.errors import UnreachableError
from dflash_backend.core.samples import RunStatus
from dflash_backend.hostside import _procs
from dflash_backend.runs.contract import LaunchSpec
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.session import SshLink
from rigs.run_host import Host, gone, until
from rigs.sshd import poll_until

CONSOLE = """
import asyncio, json, sys
from dflash_backend.core.inventory import HostConfig
from dflash_backend.runs.contract import LaunchSpec
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.session import SshLink

async def main(what, argument):
    runs = HostRuns(SshLink(HostConfig(name="rig", address="rig")))
    if what == "launch":
        run = await runs.launch(LaunchSpec(**json.loads(argument)))
        print(run.run_id, flush=True)
        await asyncio.sleep(600)
    else:
        print("stopping", flush=True)
        await runs.stop(argument, grace_s=float(what))

asyncio.run(main(*sys.argv[1:]))
"""


def console(*arguments: str) -> subprocess.Popen[bytes]:
    """Another console, as a process that can be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", CONSOLE, *arguments], stdout=subprocess.PIPE, start_new_session=True
    )


def as_argument(spec: LaunchSpec) -> str:
    """A spec for the other console."""
    return json.dumps(asdict(spec))


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait for it."""
    process.kill()
    process.wait()


async def test_run_is_found_whole_after_kill_9_of_the_console(host: Host, runs: HostRuns) -> None:
    spec = host.spec("child")
    other = console("launch", as_argument(spec))
    assert other.stdout is not None
    run_id = other.stdout.readline().decode().strip()
    kill(other)
    family = host.family(spec)
    (run,) = await runs.list_runs()
    assert (run.run_id, run.alive, run.pid) == (run_id, True, family["server"])
    assert run.argv == tuple(spec.argv)
    assert (await runs.stop(run_id, grace_s=10)).complete


async def test_console_killed_in_the_middle_of_a_launch_leaves_a_run_or_nothing(
    host: Host, runs: HostRuns
) -> None:
    """Killed at several moments; whatever the moment, no half of a launch is left."""
    for step in range(6):
        spec = host.spec(server=f"server {step}")
        other = console("launch", as_argument(spec))
        await asyncio.sleep(0.25 + 0.12 * step)  # the moment itself is what varies, nothing waits for it
        kill(other)
        await until(lambda: not host.sshd.commands())
        found = [run for run in await runs.list_runs() if run.server == spec.server]
        for run in found:
            assert run.pid is not None, run.note
            assert run.alive
            assert not (Path(run.folder) / "environment").exists()
            assert (await runs.stop(run.run_id, grace_s=10)).complete
        assert len(found) <= 1


async def test_connection_lost_during_a_launch(host: Host, link: SshLink, runs: HostRuns) -> None:
    """The host finishes by itself, and the caller gets the run over the next connection."""
    await runs.list_runs()
    spec = host.spec("child")
    launching = asyncio.create_task(runs.launch(spec))
    await until(host.root.exists)
    await until(lambda: any(name.startswith("2") for name in os.listdir(host.root)))
    host.sshd.drop_connections()
    run = await launching
    assert run.pid == host.family(spec)["server"]
    assert [one.run_id for one in await runs.list_runs()] == [run.run_id]


async def test_host_gone_during_a_launch_is_said(
    host: Host, link: SshLink, runs: HostRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_backend.runs.service.FIND_AGAIN_S", 1.0)
    await runs.list_runs()
    launching = asyncio.create_task(runs.launch(host.spec()))
    await until(host.root.exists)
    host.sshd.stop()
    with pytest.raises(UnreachableError, match="while the run was being launched"):
        await launching
    host.sshd.start()
    await link.retry_now()
    await link.wait_up(15)
    assert all(run.pid is not None for run in await runs.list_runs())


async def test_cancelled_launch_leaves_a_run_or_nothing(host: Host, runs: HostRuns) -> None:
    await runs.list_runs()
    for step in range(4):
        launching = asyncio.create_task(runs.launch(host.spec(server=f"server {step}")))
        await asyncio.sleep(0.05 * (step + 1))  # the moment itself is what varies
        launching.cancel()
        await asyncio.wait((launching,))
        await until(lambda: not host.sshd.commands())
        found = [run for run in await runs.list_runs() if run.server == f"server {step}"]
        assert all(run.alive and not run.note for run in found)
        assert len(found) <= 1


async def test_stop_goes_on_when_the_console_is_killed(host: Host, runs: HostRuns) -> None:
    spec = host.spec("child", "ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    other = console("2", run.run_id)
    await until(lambda: os.path.exists(os.path.join(run.folder, "stop")))
    kill(other)
    host.sshd.drop_connections()
    await until(lambda: all(gone(pid) for pid in family.values()))
    await until(lambda: os.path.exists(os.path.join(run.folder, "stopped")))
    report = json.loads((Path(run.folder) / "stopped").read_text())
    assert report["killed"]
    assert report["group_gone"]


async def test_connection_lost_during_a_stop(host: Host, runs: HostRuns) -> None:
    spec = host.spec("ignore-term")
    run = await runs.launch(spec)
    host.family(spec)
    stopping = asyncio.create_task(runs.stop(run.run_id, grace_s=2))
    await until(lambda: os.path.exists(os.path.join(run.folder, "stop")))
    host.sshd.drop_connections()
    report = await stopping
    assert report.complete
    assert report.killed


async def test_cancelled_stop_is_carried_out_by_the_host(host: Host, runs: HostRuns) -> None:
    spec = host.spec("ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    stopping = asyncio.create_task(runs.stop(run.run_id, grace_s=1))
    await until(lambda: os.path.exists(os.path.join(run.folder, "stop")))
    stopping.cancel()
    await asyncio.wait((stopping,))
    await until(lambda: gone(family["server"]))
    assert (await runs.stop(run.run_id)).complete


async def test_unreachable_host_says_nothing_about_the_run(host: Host, runs: HostRuns) -> None:
    host.sshd.stop()
    with pytest.raises(UnreachableError):
        await runs.stop("20261130T000000Z-00000000")
    with pytest.raises(UnreachableError):
        await runs.list_runs()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
async def test_signals_to_the_supervisor_change_nothing(host: Host, runs: HostRuns, number: int) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    family = host.family(spec)
    supervisor = supervisor_of(run)
    for _ in range(20):
        os.kill(supervisor, number)
    os.kill(family["server"], signal.SIGTERM)
    poll_until(lambda: os.path.exists(os.path.join(run.folder, "exit")), what="the recorded exit")
    (after,) = await runs.list_runs()
    assert after.exit_code == 143


async def test_without_its_supervisor_a_run_lives_and_can_be_stopped(host: Host, runs: HostRuns) -> None:
    spec = host.spec("child")
    run = await runs.launch(spec)
    family = host.family(spec)
    os.kill(supervisor_of(run), signal.SIGKILL)
    await until(lambda: gone(supervisor_of(run)))
    (row,) = await runs.list_runs()
    assert row.alive
    assert "supervisor is gone" in row.note
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.complete
    assert report.exit_code is None
    assert any("exit code was not recorded" in note for note in report.notes)
    assert all(gone(pid) for pid in family.values())


async def test_nothing_of_ours_stays_on_the_host_after_a_stop(host: Host, runs: HostRuns) -> None:
    spec = host.spec("child")
    run = await runs.launch(spec)
    host.family(spec)
    supervisor = supervisor_of(run)
    await runs.stop(run.run_id, grace_s=10)

    def left() -> list[_procs.Process]:
        return [
            one
            for one in _procs.processes().values()
            if one.living and (one.session == supervisor or run.run_id in " ".join(_procs.arguments(one.pid)))
        ]

    await until(lambda: not left())


def supervisor_of(run: RunStatus) -> int:
    """Pid of the supervisor."""
    lines = (Path(run.folder) / "supervisor").read_text().split()
    return int(dict(line.split("=") for line in lines)["pid"])
