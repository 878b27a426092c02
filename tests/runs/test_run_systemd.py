"""Runs as systemd user services, under a real systemd: the same folder, the same answers, an exact stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dflash_backend.hostside import _members, _procs
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.session import SshLink
from rigs.run_host import Host, gone, until
from rigs.sshd import Sshd
from rigs.user_systemd import UserSystemd, missing


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserSystemd]:
    """One systemd for all tests here."""
    if reason := missing():
        pytest.skip(reason)
    with UserSystemd(tmp_path_factory.mktemp("systemd")) as value:
        yield value


@pytest.fixture
def host(
    manager: UserSystemd, tmp_path: Path, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    """A host whose sshd runs beside that systemd."""
    with Sshd(tmp_path / "sshd", prefix=manager.prefix) as sshd:
        for variable, value in sshd.environment.items():
            monkeypatch.setenv(variable, value)
        one = Host(sshd, tmp_path)
        yield one
        one.clean_up()


@pytest.fixture
async def runs(host: Host) -> AsyncIterator[HostRuns]:
    """The service under test."""
    link = SshLink(host.sshd.host_config())
    yield HostRuns(link)
    await link.close()


def unit(run_id: str) -> str:
    """The unit of a run."""
    return f"dflash-run-{run_id}.service"


async def test_run_is_a_unit_and_its_folder_is_as_ever(
    runs: HostRuns, host: Host, manager: UserSystemd
) -> None:
    spec = host.spec("child", env={"A": "x y $HOME %h"}, secret_env={"TOKEN": "s3cr3t-Zq8vW"})
    run = await runs.launch(spec)
    assert run.manager == "systemd"
    family = host.family(spec)
    assert manager.ctl("is-active", unit(run.run_id)) == "active"
    assert all(_procs.cgroup_has(pid, unit(run.run_id)) for pid in family.values())
    names = set(os.listdir(run.folder))
    assert names == {".exit", "child.py", "log", "pid", "run.json", "supervisor", "supervisor.sh"}
    environment = Path(f"/proc/{run.pid}/environ").read_bytes().split(b"\0")
    assert b"A=x y $HOME %h" in environment
    assert b"TOKEN=s3cr3t-Zq8vW" in environment
    assert b"HOME=" + os.fsencode(host.sshd.remote_home) in environment
    assert "s3cr3t" not in manager.ctl("show", unit(run.run_id))
    assert not any("s3cr3t" in " ".join(_procs.arguments(pid)) for pid in _procs.processes())
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.complete
    assert (report.exit_code, report.killed) == (143, False)
    assert all(gone(pid) for pid in family.values())
    assert unit(run.run_id) not in manager.ctl("list-units", "--all", "--plain", "--no-legend")


async def test_the_cgroup_catches_what_left_group_session_and_environment(runs: HostRuns, host: Host) -> None:
    spec = host.spec("orphan", "own-session", "own-session-clean", "ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    assert len(family) == 4
    by_cgroup = _members.Tracker(run.run_id, None, None, unit=unit(run.run_id), marked=False).living()
    assert set(family.values()) <= {one.pid for one in by_cgroup}
    report = await runs.stop(run.run_id, grace_s=0.5)
    assert report.complete
    assert report.killed
    assert report.exit_code == 137
    assert all(gone(pid) for pid in family.values())


async def test_systemctl_stop_is_a_clean_stop_too(runs: HostRuns, host: Host, manager: UserSystemd) -> None:
    """The supervisor hands TERM on, and the exit code is recorded."""
    spec = host.spec("child")
    run = await runs.launch(spec)
    family = host.family(spec)
    manager.ctl("stop", unit(run.run_id))
    await until(lambda: gone(family["server"]))
    (row,) = await runs.list_runs()
    assert (row.alive, row.exit_code) == (False, 143)


async def test_natural_exit_code_is_kept(runs: HostRuns, host: Host) -> None:
    run = await runs.launch(host.spec("exit=7"))
    await until(lambda: os.path.exists(os.path.join(run.folder, "exit")))
    (row,) = await runs.list_runs()
    assert (row.alive, row.exit_code, row.manager) == (False, 7, "systemd")
    await runs.forget(run.run_id)
    assert await runs.list_runs() == ()


async def test_stop_survives_the_end_of_the_login(runs: HostRuns, host: Host, manager: UserSystemd) -> None:
    """The process that carries out the stop has left the login's scope."""
    spec = host.spec("ignore-term")
    run = await runs.launch(spec)
    family = host.family(spec)
    stopping = asyncio.create_task(runs.stop(run.run_id, grace_s=3))
    await until(lambda: "dflash-stop-" in manager.ctl("list-units", "--type=scope", "--plain", "--no-legend"))
    stopping.cancel()
    await asyncio.wait((stopping,))
    await until(lambda: gone(family["server"]))
    await until(lambda: os.path.exists(os.path.join(run.folder, "stopped")))
    assert json.loads((Path(run.folder) / "stopped").read_text())["killed"]


async def test_a_supervisor_killed_by_hand_ends_the_unit(runs: HostRuns, host: Host) -> None:
    """systemd then removes the rest of the unit; the row says that the code is not known."""
    spec = host.spec("child")
    run = await runs.launch(spec)
    family = host.family(spec)
    lines = dict(line.split("=") for line in (Path(run.folder) / "supervisor").read_text().split())
    os.kill(int(lines["pid"]), signal.SIGKILL)
    await until(lambda: all(gone(pid) for pid in family.values()))
    (row,) = await runs.list_runs()
    assert not row.alive
    assert "exit code was not recorded" in row.note
    assert (await runs.stop(run.run_id)).group_gone


async def test_without_systemd_on_request(runs: HostRuns, host: Host) -> None:
    spec = host.spec(systemd=False)
    run = await runs.launch(spec)
    host.family(spec)
    assert run.manager == "setsid"
    assert (await runs.stop(run.run_id, grace_s=10)).complete


async def test_a_path_that_systemd_would_interpret_is_not_given_to_it(
    manager: UserSystemd, tmp_path: Path, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "st $HOME %h"
    with Sshd(tmp_path / "sshd", prefix=manager.prefix, remote_env={"XDG_STATE_HOME": str(state)}) as sshd:
        for variable, value in sshd.environment.items():
            monkeypatch.setenv(variable, value)
        host = Host(sshd, tmp_path)
        link = SshLink(sshd.host_config())
        spec = host.spec()
        runs = HostRuns(link)
        run = await runs.launch(spec)
        host.family(spec)
        assert run.manager == "setsid"
        assert run.folder.startswith(str(state))
        assert (await runs.stop(run.run_id, grace_s=10)).complete
        await link.close()


async def test_without_lingering_a_unit_would_end_with_the_login(
    tmp_path: Path, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No password can be asked for, so the supervisor does it alone and the record says why."""
    if reason := missing():
        pytest.skip(reason)
    with (
        UserSystemd(tmp_path, linger=False) as manager,
        Sshd(tmp_path / "sshd", prefix=manager.prefix) as sshd,
    ):
        for variable, value in sshd.environment.items():
            monkeypatch.setenv(variable, value)
        host = Host(sshd, tmp_path)
        link = SshLink(sshd.host_config())
        runs = HostRuns(link)
        spec = host.spec()
        run = await runs.launch(spec)
        host.family(spec)
        assert run.manager == "setsid"
        record = json.loads((Path(run.folder) / "run.json").read_text())
        assert "lingering is off" in record["manager_note"]
        assert (await runs.stop(run.run_id, grace_s=10)).complete
        await link.close()
