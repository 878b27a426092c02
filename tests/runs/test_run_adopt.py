"""Adopting a server that somebody started by hand: found by its port, and then ours to stop, alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError, RefusedError, UsageError
from dflash_backend.hostside import _procs
from dflash_backend.hostside._adopt import REDACTED, without_secrets
from dflash_backend.runs.service import HostRuns
from rigs.run_host import SERVER, Host, gone
from rigs.sshd import free_port, poll_until


@dataclass
class ByHand:
    """A server that no run started."""

    port: int
    process: subprocess.Popen[bytes]
    pids: dict[str, int]


Start = Callable[..., ByHand]


@pytest.fixture
def start(host: Host) -> Iterator[Start]:
    """Starts tree servers as a person would; ``shell`` is a script that gets the command as ``"$@"``."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*features: str, shell: str = "", log: Path | None = None) -> ByHand:
        spec = host.spec(*features)
        argv = ["sh", "-c", shell, "sh", *spec.argv] if shell else list(spec.argv)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("wb")) if log else subprocess.DEVNULL
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        started.append(process)
        return ByHand(spec.port, process, host.family(spec))

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_adopted_server_is_listed_followed_and_stopped(
    runs: HostRuns, host: Host, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "by hand.log"
    server = start("child", "orphan", log=log)
    run = await runs.adopt(server="one", port=server.port, profile="p", started_by="tester@here")
    assert (run.manager, run.alive, run.pid, run.port) == ("adopted", True, server.process.pid, server.port)
    assert run.argv[1] == str(SERVER)
    assert (run.profile, run.started_by) == ("p", "adopted by tester@here")
    assert run.log_path == str(log)
    assert await runs.list_runs() == (replace(run, log_tail="listening\n"),)
    lines = [line async for batch in runs.follow_log(run.run_id, follow=False) for line in batch]
    assert lines == ["listening"]
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.complete
    assert report.exit_code is None
    assert all(gone(pid) for pid in server.pids.values())
    await runs.forget(run.run_id)
    assert log.exists()
    assert await runs.list_runs() == ()


async def test_adopting_twice_is_one_run(runs: HostRuns, host: Host, start: Start) -> None:
    server = start()
    first = await runs.adopt(server="one", port=server.port)
    assert (await runs.adopt(server="one", port=server.port)).run_id == first.run_id
    with pytest.raises(RefusedError, match=f"is run {first.run_id} of server one"):
        await runs.adopt(server="two", port=server.port)


async def test_a_launched_run_needs_no_adoption(runs: HostRuns, host: Host) -> None:
    spec = host.spec()
    run = await runs.launch(spec)
    host.family(spec)
    assert (await runs.adopt(server="one", port=spec.port)).run_id == run.run_id
    with pytest.raises(RefusedError, match=run.run_id):
        await runs.adopt(server="two", port=spec.port)


async def test_a_shared_group_is_left_alone_but_for_the_server(
    runs: HostRuns, host: Host, start: Start
) -> None:
    """Started from a script: the script and its other jobs are not ours, the server's descendants are."""
    server = start("child", shell='sleep 600 & "$@"; wait')
    shell = server.process.pid
    assert server.pids["server"] != shell
    run = await runs.adopt(server="one", port=server.port)
    assert (run.pid, run.pgid) == (server.pids["server"], shell)
    report = await runs.stop(run.run_id, grace_s=10)
    assert report.complete
    assert all(gone(pid) for pid in server.pids.values())
    assert server.process.poll() is None
    assert [one.name for one in _procs.processes().values() if one.ppid == shell] == ["sleep"]


async def test_it_is_killed_when_term_is_not_enough(runs: HostRuns, host: Host, start: Start) -> None:
    server = start("child", "ignore-term", shell='"$@"; wait')
    run = await runs.adopt(server="one", port=server.port)
    report = await runs.stop(run.run_id, grace_s=0.3)
    assert report.complete
    assert report.killed
    assert all(gone(pid) for pid in server.pids.values())


async def test_an_adopted_pid_that_was_recycled_is_not_signalled(
    runs: HostRuns, host: Host, start: Start
) -> None:
    server = start()
    run = await runs.adopt(server="one", port=server.port)
    file = Path(run.folder) / "pid"
    lines = [line if not line.startswith("start=") else "start=12345" for line in file.read_text().split()]
    file.write_text("\n".join(lines) + "\n")
    report = await runs.stop(run.run_id, grace_s=0.3)
    assert server.process.poll() is None
    assert not report.port_free
    (row,) = await runs.list_runs()
    assert not row.alive


async def test_nothing_listens(runs: HostRuns, host: Host) -> None:
    with pytest.raises(FailedError, match="nothing listens"):
        await runs.adopt(server="one", port=free_port())
    assert await runs.list_runs() == ()


async def test_the_hosts_own_sshd_cannot_be_adopted(runs: HostRuns, host: Host) -> None:
    with pytest.raises(RefusedError, match="carries this session"):
        await runs.adopt(server="one", port=host.sshd.port)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root to make")
async def test_somebody_elses_server_cannot_be_adopted(runs: HostRuns, host: Host) -> None:
    port = free_port()
    code = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    other = subprocess.Popen(["/usr/bin/python3", "-c", code], user=65534, cwd="/")
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        poll_until(listens)
        with pytest.raises(RefusedError, match="belongs to another user"):
            await runs.adopt(server="one", port=port)
    finally:
        other.kill()
        other.wait()


async def test_bad_questions(runs: HostRuns, host: Host) -> None:
    with pytest.raises(UsageError):
        await runs.adopt(server="", port=1)
    with pytest.raises(UsageError):
        await runs.adopt(server="x", port=0)


def test_recorded_command_lines_hold_no_secret() -> None:
    argv = [sys.executable, "--api-key", "abc", "--admin-api-key=def", "--hf-token", "hf_x", "--port", "1"]
    argv += [
        "--max-total-tokens",
        "9",
        "--ssl-keyfile",
        "k.pem",
        "--trust-remote-code",
        "--tokenizer-path",
        "t",
    ]
    hidden = without_secrets(argv)
    assert hidden[2:7] == [REDACTED, f"--admin-api-key={REDACTED}", "--hf-token", REDACTED, "--port"]
    assert hidden[7:] == argv[7:]
