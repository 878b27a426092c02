"""Launching: what is on the host's disk, what is refused, and that nothing is left of a refusal."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_backend.core.errors import ConsoleError, FailedError, RefusedError, UsageError
from dflash_backend.core.samples import RunStatus
from dflash_backend.hostside import _launch, _procs
from dflash_backend.runs.contract import LaunchSpec
from dflash_backend.runs.rows import explain_exit
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.session import SshLink
from rigs.run_host import Host, gone
from rigs.sshd import free_port, poll_until


async def test_identity_and_record_are_on_disk_when_the_launch_returns(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    assert run.alive
    assert (run.server, run.profile, run.profile_digest, run.port) == ("one", "tree", "d1", spec.port)
    assert run.profile_toml == spec.profile_toml
    assert run.argv == tuple(spec.argv)
    assert run.started_by == "tester@here"
    folder = Path(run.folder)
    assert folder.parent == host.root
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, host.root, host.root.parent)] == [
        0o700
    ] * 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    process = _procs.process(run.pid or 0)
    assert process is not None
    assert process.pgrp == process.session == process.pid == run.pgid
    lines = dict(line.split("=") for line in (folder / "pid").read_text().split())
    assert lines == {
        "pid": str(run.pid),
        "start": str(process.start),
        "boot_id": _procs.boot_id(),
        "pgid": str(run.pid),
        "session": str(run.pid),
    }


LOOK_AROUND = """
import json, os, signal
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "mask": status["SigBlk"],
    "ignored": status["SigIgn"],
    "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "cwd": os.getcwd(),
    "descriptors": os.listdir("/proc/self/fd"),
    "umask": os.umask(0),
    "stdin": os.readlink("/proc/self/fd/0"),
    "env": {name: os.environ.get(name) for name in ("A", "SSH_CONNECTION", "DFLASH_RUN_ID", "HOME")},
}))
"""


async def test_server_gets_a_clean_process(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    """No signal ignored, no descriptor inherited, the user's umask, the environment asked for."""
    argv = [sys.executable, "-c", LOOK_AROUND]
    run = await runs.launch(host.spec(argv=argv, env={"A": "x y\n'\"$(id)"}, cwd=str(host.folder)))
    over(run)
    seen = json.loads(Path(run.log_path).read_text())
    # Python itself ignores SIGPIPE and SIGXFSZ; 32 and 33 are glibc's own, which `make` (posix_spawn) leaves
    # ignored and nobody can reset.
    assert int(seen["ignored"], 16) & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32) == 0
    assert seen["int"]
    assert int(seen["mask"], 16) == 0
    assert seen["cwd"] == str(host.folder)
    assert seen["stdin"] == "/dev/null"
    assert len(seen["descriptors"]) == 4  # 0, 1, 2 and the one of listdir
    assert seen["umask"] == 0o022
    assert seen["env"] == {
        "A": "x y\n'\"$(id)",
        "SSH_CONNECTION": None,
        "DFLASH_RUN_ID": run.run_id,
        "HOME": str(host.sshd.remote_home),
    }


@pytest.mark.parametrize("name", ["a b", "it's", 'say "x"', "$(id)", "-rf", "日本", "../../x", "[/red]"])
async def test_odd_names_come_back_as_they_were(runs: HostRuns, host: Host, name: str) -> None:
    run = await runs.launch(host.spec(server=name, profile=name))
    assert (run.server, run.profile) == (name, name)
    assert (await runs.list_runs())[0].server == name
    assert Path(run.folder).parent == host.root


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b]52;c;x\x07", "a\x00", "\u202eabc", "x" * 300])
async def test_names_that_cannot_be_shown_are_refused(runs: HostRuns, host: Host, name: str) -> None:
    with pytest.raises(UsageError):
        await runs.launch(host.spec(server=name))
    assert not host.root.exists()


def changed(spec: LaunchSpec, what: str, folder: Path) -> LaunchSpec:
    """A launch that cannot work, in one of many ways."""
    plain = folder / "plain"
    plain.write_text("no program")
    (folder / "empty-venv").mkdir(exist_ok=True)
    interpreters = {
        "missing": str(folder / "nowhere/python"),
        "not executable": str(plain),
        "folder without python": str(folder / "empty-venv"),
        "unknown name": "no-such-program-anywhere",
    }
    if what in interpreters:
        return replace(spec, argv=[interpreters[what], *spec.argv[1:]])
    return replace(spec, cwd=str(folder / "nowhere"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "there is no interpreter"),
        ("not executable", "is not executable"),
        ("folder without python", "there is no interpreter"),
        ("unknown name", "there is no program no-such-program-anywhere"),
        ("cwd", "there is no folder"),
    ],
)
async def test_a_launch_that_cannot_work_leaves_nothing(
    runs: HostRuns, host: Host, what: str, said: str
) -> None:
    with pytest.raises(FailedError, match=said):
        await runs.launch(changed(host.spec(), what, host.folder))
    assert await runs.list_runs() == ()
    assert [name for name in os.listdir(host.root) if not name.startswith(".")] == []


async def test_venv_folder_and_home_are_understood(runs: HostRuns, host: Host) -> None:
    venv = host.sshd.remote_home / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    spec = host.spec()
    run = await runs.launch(replace(spec, argv=["~/venv", *spec.argv[1:]]))
    assert run.argv[0] == str(venv / "python")
    host.family(spec)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::1"])
async def test_a_taken_port_is_refused_and_the_holder_named(runs: HostRuns, host: Host, address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        taken = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"cannot listen on {address}: {error}")
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(FailedError, match=rf"port {port} is taken: pid {os.getpid()} "):
            await runs.launch(host.spec(port=port))
    assert await runs.list_runs() == ()


async def test_same_server_and_same_port_are_refused_while_a_run_lives(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    with pytest.raises(FailedError, match=f"runs already: run {run.run_id}"):
        await runs.launch(host.spec(port=free_port()))
    # The port is promised before the server listens on it.
    with pytest.raises(FailedError, match=f"port {spec.port} (belongs to server one|is taken)"):
        await runs.launch(host.spec(server="two", port=spec.port))
    assert len(await runs.list_runs()) == 1


async def test_of_two_consoles_at_one_moment_one_wins(host: Host, link: SshLink) -> None:
    other = SshLink(host.sshd.host_config())
    try:
        port = free_port()
        results = await asyncio.gather(
            *(HostRuns(one).launch(host.spec(port=port)) for one in (link, other)), return_exceptions=True
        )
    finally:
        await other.close()
    won = [result for result in results if isinstance(result, RunStatus)]
    lost = [result for result in results if isinstance(result, ConsoleError)]
    assert len(won) == len(lost) == 1
    assert f"runs already: run {won[0].run_id}" in str(lost[0])
    assert [run.run_id for run in await HostRuns(link).list_runs()] == [won[0].run_id]


async def test_a_launch_lock_that_is_never_given_back_is_said(runs: HostRuns, host: Host) -> None:
    host.root.mkdir(parents=True, mode=0o700)
    with (
        _launch.held(str(host.root / ".launch-lock")),
        pytest.raises(FailedError, match="another console is launching"),
    ):
        await runs.launch(host.spec())
    assert await runs.list_runs() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("left_kib", [0, 8 * 1024])
async def test_full_disk_refuses_the_launch_and_leaves_nothing(
    runs: HostRuns, host: Host, left_kib: int
) -> None:
    state = host.sshd.remote_home / ".local" / "state"
    state.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(state)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode()}")
    try:
        if not left_kib:
            fill(state / "ballast")
        with pytest.raises(FailedError, match="is full"):
            await runs.launch(host.spec())
        assert not list(state.glob("dflash-console/runs/2*"))
    finally:
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_disk_that_fills_up_later_costs_neither_stop_nor_exit_code(runs: HostRuns, host: Host) -> None:
    state = host.sshd.remote_home / ".local" / "state"
    state.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(state)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode()}")
    try:
        spec = host.spec("child")
        run = await runs.launch(spec)
        host.family(spec)
        fill(state / "ballast")
        report = await runs.stop(run.run_id, grace_s=10)
        assert report.complete
        assert report.exit_code == 143
        assert (await runs.list_runs())[0].exit_code == 143
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_disk_that_becomes_read_only_does_not_hinder_the_stop(runs: HostRuns, host: Host) -> None:
    """What the kernel does with a disk that has errors."""
    state = host.sshd.remote_home / ".local" / "state"
    state.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(state)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode()}")
    try:
        spec = host.spec("child", "ignore-term")
        run = await runs.launch(spec)
        family = host.family(spec)
        # A second view of the same disk, as the kernel refuses to remount what is being written to.
        subprocess.run(["mount", "--bind", str(state), str(state)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(state)], check=True)
        report = await runs.stop(run.run_id, grace_s=0.5)
        assert report.group_gone
        assert all(gone(pid) for pid in family.values())
        with pytest.raises(FailedError, match="Read-only file system"):
            await runs.launch(host.spec())
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)
        subprocess.run(["umount", "-l", str(state)], check=True)


def fill(path: Path) -> None:
    """Writes until the disk is full to the last byte."""
    with path.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    if not stream.write(b"x" * size):
                        break
                except OSError:
                    break


@pytest.mark.parametrize(
    ("code", "said"), [(0, "without an error"), (7, "exit code 7"), (127, "was not found")]
)
async def test_natural_exit_codes(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None], code: int, said: str
) -> None:
    run = await runs.launch(host.spec(f"exit={code}"))
    over(run)
    (after,) = await runs.list_runs()
    assert (after.alive, after.exit_code, after.note) == (False, code, "")
    assert after.exited_at is not None
    assert after.started_at is not None
    assert after.exited_at >= after.started_at
    assert "last words" in after.log_tail
    assert said in explain_exit(after)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
async def test_a_whole_life_under_other_pythons(host: Host, version: str) -> None:
    """Everything that the host does, in the oldest Python that it may have and in newer ones."""
    found = [shutil.which(f"python{version}")]
    found += map(str, Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob(f"versions/{version}.*/bin/python"))
    works = [p for p in found if p and subprocess.run([p, "-V"], capture_output=True).returncode == 0]
    if not works:
        pytest.skip(f"python{version} is not installed")
    link = SshLink(host.sshd.host_config(python=works[0]))
    try:
        runs = HostRuns(link)
        spec = host.spec("child", "own-session")
        run = await runs.launch(spec)
        family = host.family(spec)
        lines = [line async for batch in runs.follow_log(run.run_id, follow=False) for line in batch]
        assert lines == ["listening"]
        assert (await runs.adopt(server="one", port=spec.port)).run_id == run.run_id
        report = await runs.stop(run.run_id, grace_s=10)
        assert report.complete
        assert all(gone(pid) for pid in family.values())
        await runs.forget(run.run_id)
        assert await runs.list_runs() == ()
    finally:
        await link.close()


async def test_an_interpreter_that_is_not_there_at_exec_is_in_the_log(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    script = host.folder / "script"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    run = await runs.launch(host.spec(argv=[str(script)]))
    over(run)
    (after,) = await runs.list_runs()
    assert after.exit_code == 127
    assert f"cannot start {script}" in after.log_tail


async def test_a_secret_on_the_command_line_is_refused(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    with pytest.raises(RefusedError, match="API_KEY"):
        await runs.launch(
            replace(spec, argv=[*spec.argv, "--api-key=abcd1234"], secret_env={"API_KEY": "abcd1234"})
        )
    assert not host.root.exists()


async def test_secret_reaches_the_server_and_nothing_else(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    secret = "s3cr3t-Zq8vW"
    code = "import os, sys, time; print(len(os.environ['HF_TOKEN']), flush=True); time.sleep(600)"
    run = await runs.launch(host.spec(argv=[sys.executable, "-c", code], secret_env={"HF_TOKEN": secret}))
    poll_until(lambda: Path(run.log_path).read_text().strip() == str(len(secret)), what="the server's word")
    for folder, _, names in os.walk(host.folder):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path
    for pid in _procs.processes():
        assert secret not in " ".join(_procs.arguments(pid))
    holders = [
        pid
        for pid in _procs.processes()
        if secret.encode() in (_procs.read_bytes(f"/proc/{pid}/environ") or b"")
    ]
    assert holders == [run.pid]
    assert "HF_TOKEN" in (Path(run.folder) / "run.json").read_text()
    report = await runs.stop(run.run_id, grace_s=5)
    assert report.complete


async def test_a_secret_that_the_server_prints_is_not_shown(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    secret = "s3cr3t-Zq8vW"
    code = "import os; print('the word is', os.environ['HF_TOKEN'])"
    run = await runs.launch(host.spec(argv=[sys.executable, "-c", code], secret_env={"HF_TOKEN": secret}))
    over(run)
    (after,) = await runs.list_runs()
    assert secret not in after.log_tail
    lines = [line async for batch in runs.follow_log(run.run_id, follow=False) for line in batch]
    assert lines == ["the word is «redacted»"]
