"""Commands on the host: bounded, and gone when nobody waits for them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dflash_backend.core.errors import FailedError, UnreachableError
from dflash_backend.core.states import LinkState
from dflash_backend.ssh.pool import SshPool
from dflash_backend.ssh.session import MAX_SESSIONS, SshLink
from rigs.sshd import Sshd

pytestmark = pytest.mark.sshd


async def until(condition: Callable[[], object], deadline: float = 15.0) -> None:
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_status_and_both_outputs(link: SshLink) -> None:
    done = await link.run(["sh", "-c", "cat; echo to-stderr >&2; exit 3"], stdin=b"\xff\x00 in")
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"\xff\x00 in", b"to-stderr\n")
    assert not done.truncated
    assert link.status.state is LinkState.UP


async def test_a_signal_is_a_negative_status(link: SshLink) -> None:
    done = await link.run(["sh", "-c", "kill -s KILL $$"])
    assert done.exit_status == -9


async def test_a_missing_command_is_an_exit_status(link: SshLink) -> None:
    done = await link.run(["no-such-command-here"])
    assert done.exit_status == 127


async def test_invalid_utf8_harms_neither_the_command_nor_the_connection(link: SshLink) -> None:
    async with link.stream(["cat"]) as other:
        await other.write(b"first\n")
        chunks = other.chunks()
        assert await anext(chunks) == b"first\n"
        done = await link.run(["printf", "\\377\\376\\200"])
        assert done.stdout == b"\xff\xfe\x80"
        await other.write(b"second\n")
        assert await anext(chunks) == b"second\n"


async def test_output_over_the_bound_is_dropped_and_said(link: SshLink) -> None:
    done = await link.run(["head", "-c", "20000000", "/dev/zero"], max_output=1000)
    assert (len(done.stdout), done.truncated, done.exit_status) == (1000, True, 0)


async def test_endless_stderr_is_bounded(link: SshLink) -> None:
    done = await link.run(["sh", "-c", "head -c 3000000 /dev/zero >&2; echo last >&2"])
    assert len(done.stderr) <= 64 * 1024
    assert done.stderr.endswith(b"last\n")


async def test_a_command_that_reads_nothing_is_no_error(link: SshLink) -> None:
    done = await link.run(["true"], stdin=b"x" * 5_000_000)
    assert done.exit_status == 0


async def test_a_timeout_leaves_nothing_on_the_host(link: SshLink, sshd: Sshd) -> None:
    with pytest.raises(UnreachableError, match=r"within 0\.5 s"):
        await link.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=0.5)
    await until(lambda: not sshd.commands())
    await until(lambda: sshd.sessions() == 0)
    assert link.status.state is LinkState.UP


async def test_cancelled_calls_leave_nothing_on_the_host(link: SshLink, sshd: Sshd) -> None:
    await link.run(["true"])
    # More than MaxSessions in all: leaked ones would make the last command fail.
    for _ in range(3):
        tasks = [asyncio.create_task(link.run(["sleep", "1000"])) for _ in range(MAX_SESSIONS + 2)]
        await until(lambda: len(sshd.commands()) >= MAX_SESSIONS)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        await until(lambda: not sshd.commands())
    done = await link.run(["echo", "still here"])
    assert done.stdout == b"still here\n"
    await until(lambda: sshd.sessions() == 0)


async def test_cancelling_at_any_moment_of_the_opening_leaks_nothing(link: SshLink, sshd: Sshd) -> None:
    await link.run(["true"])
    for steps in range(40):
        task = asyncio.create_task(link.run(["sleep", "1000"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps % 4 == 3:
            await asyncio.sleep(steps / 2000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: not sshd.commands())
    await until(lambda: sshd.sessions() == 0)
    assert (await link.run(["true"])).exit_status == 0


async def test_leaving_a_stream_ends_a_command_that_ignores_term(link: SshLink, sshd: Sshd) -> None:
    async with link.stream(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]) as process:
        assert await anext(process.chunks()) == b"up\n"
    await until(lambda: not sshd.commands())


async def test_leaving_a_stream_that_nobody_read(link: SshLink, sshd: Sshd) -> None:
    async with link.stream(["sh", "-c", "yes | head -c 100000000; sleep 1000"]):
        await until(lambda: sshd.commands())
    await until(lambda: not sshd.commands())


async def test_no_more_sessions_at_once_than_promised(link: SshLink, sshd: Sshd) -> None:
    tasks = [asyncio.create_task(link.run(["sh", "-c", "sleep 0.3; echo done"])) for _ in range(20)]
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, sshd.sessions())
        await asyncio.sleep(0.02)
    assert [(await task).stdout for task in tasks] == [b"done\n"] * 20
    assert 0 < most <= MAX_SESSIONS


async def test_calls_share_a_host_that_grants_few_sessions(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    with Sshd(tmp_path / "few", options={"MaxSessions": "2"}) as sshd:
        monkeypatch.setenv("HOME", str(sshd.client_home))
        pool = SshPool({"rig": sshd.host_config()})
        link = pool.link("rig")
        try:
            async with link.stream(["cat"]):
                done = await asyncio.gather(*(link.run(["echo", str(n)]) for n in range(8)))
            assert [item.stdout for item in done] == [b"%d\n" % n for n in range(8)]
        finally:
            await pool.close()


async def test_a_host_without_sessions_says_so(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    with Sshd(tmp_path / "none", options={"MaxSessions": "0"}) as sshd:
        monkeypatch.setenv("HOME", str(sshd.client_home))
        pool = SshPool({"rig": sshd.host_config()})
        try:
            with pytest.raises(FailedError, match="no further session"):
                await pool.link("rig").run(["true"], timeout=20)
        finally:
            await pool.close()


async def test_a_connection_lost_in_the_middle_is_said(link: SshLink, sshd: Sshd) -> None:
    task = asyncio.create_task(link.run(["sleep", "20"]))
    await until(lambda: sshd.commands())
    left = sshd.commands()
    sshd.drop_connections()
    with pytest.raises(UnreachableError, match="connection went"):
        await task
    assert left  # the command may live on there: that is why the message does not say that it ended


async def test_a_stream_cut_off_does_not_end_as_if_complete(link: SshLink, sshd: Sshd) -> None:
    async with link.stream(["sh", "-c", "echo a; sleep 20"]) as process:
        chunks = process.chunks()
        assert await anext(chunks) == b"a\n"
        sshd.drop_connections()
        with pytest.raises(UnreachableError):
            await anext(chunks)
