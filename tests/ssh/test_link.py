"""Keeping a connection: lost, frozen, refused, hanging, back again; and what the status says meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dflash_backend.core.errors import ConfigError, RefusedError, UnreachableError, UsageError
from dflash_backend.core.inventory import HostConfig
from dflash_backend.core.samples import LinkStatus
from dflash_backend.core.states import LinkState
from dflash_backend.ssh.connect import KEEPALIVE_COUNT, KEEPALIVE_INTERVAL, Settings
from dflash_backend.ssh.pool import SshPool
from dflash_backend.ssh.session import SshLink
from rigs.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd


async def until(condition: Callable[[], object], deadline: float = 20.0) -> None:
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def pool_of(*hosts: HostConfig, settings: Settings | None = None) -> AsyncIterator[SshPool]:
    pool = SshPool({host.name: host for host in hosts}, settings=settings)
    try:
        yield pool
    finally:
        await pool.close()


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts connections and never says a word."""
    hold = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hold.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        hold.set()
        server.close()


async def test_status_from_the_first_call_on(pool: SshPool) -> None:
    link = pool.link("rig")
    assert link.status.state is LinkState.CONNECTING
    assert link.status.last_seen is None
    before = time.time()
    await link.run(["true"])
    status = link.status
    assert (status.state, status.message, status.retry_at) == (LinkState.UP, "", None)
    assert before <= status.since <= time.time()
    assert status.last_seen is not None
    assert before <= status.last_seen <= time.time()
    assert pool.statuses() == (link.status,)


async def test_one_connection_serves_all_calls(link: SshLink, sshd: Sshd) -> None:
    await asyncio.gather(*(link.run(["true"]) for _ in range(12)))
    assert sshd.log.read_text().count("Accepted publickey") == 1


async def test_an_unknown_host_is_a_usage_error(pool: SshPool) -> None:
    with pytest.raises(UsageError, match="rig"):
        pool.link("rog")


async def test_a_disabled_host_is_refused_and_left_alone(sshd: Sshd) -> None:
    async with pool_of(sshd.host_config(enabled=False)) as pool:
        link = pool.link("rig")
        with pytest.raises(RefusedError, match="disabled"):
            await link.run(["true"])
        await link.retry_now()
        assert link.status.state is LinkState.DISABLED
    assert "Accepted" not in sshd.log.read_text()


async def test_a_killed_server_is_seen_at_once_and_found_again(link: SshLink, sshd: Sshd) -> None:
    await link.run(["true"])
    seen = link.status.last_seen
    sshd.kill()
    await until(lambda: link.status.state is not LinkState.UP)
    lost = link.status
    assert lost.state in (LinkState.LOST, LinkState.CONNECTING)
    assert lost.last_seen == seen
    with pytest.raises(UnreachableError):
        await link.run(["true"])
    await until(lambda: link.status.state is LinkState.LOST and link.status.retry_at)
    assert "nothing listens" in link.status.message or "lost" in link.status.message
    sshd.start()
    await link.wait_up(30)
    assert (await link.run(["echo", "back"])).stdout == b"back\n"


async def test_attempts_go_on_without_anyone_asking(sshd: Sshd) -> None:
    sshd.stop()
    pauses: list[float] = []

    def short(longest: float) -> float:
        pauses.append(longest)
        return 0.01

    link = SshLink(sshd.host_config(), jitter=short)
    with pytest.raises(UnreachableError, match="nothing listens"):
        await link.run(["true"])
    await until(lambda: len(pauses) >= 9)
    # The longest possible pause doubles from a second up to a minute.
    assert pauses[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    sshd.start()
    await link.wait_up(20)
    await link.close()


async def test_a_call_during_a_long_pause_fails_at_once_with_the_reason(sshd: Sshd) -> None:
    sshd.stop()
    link = SshLink(sshd.host_config(), jitter=lambda longest: 50.0)
    with pytest.raises(UnreachableError, match="nothing listens"):
        await link.run(["true"])
    await until(lambda: link.status.state is LinkState.LOST)
    retry_at = link.status.retry_at
    assert retry_at is not None
    assert retry_at > time.time() + 30
    with pytest.raises(UnreachableError, match="nothing listens"):
        await link.run(["true"])
    sshd.start()
    await link.retry_now()
    assert (await link.run(["true"])).exit_status == 0
    await link.close()


async def test_a_frozen_server_is_found_out(sshd: Sshd) -> None:
    # The shipped figures find a dead peer within 15 s; the test uses the same count at a quicker pace.
    assert KEEPALIVE_INTERVAL * (KEEPALIVE_COUNT + 1) <= 12
    settings = Settings(keepalive_interval=0.3, connect_timeout=2)
    async with pool_of(sshd.host_config(), settings=settings) as pool:
        link = pool.link("rig")
        await link.run(["true"])
        async with link.stream(["sleep", "20"]) as process:
            sshd.freeze()
            try:
                with pytest.raises(UnreachableError):
                    await process.wait()
                await until(lambda: link.status.state is not LinkState.UP)
                with pytest.raises(UnreachableError):
                    await link.run(["true"], timeout=10)
            finally:
                sshd.thaw()
        await link.wait_up(30)
        assert (await link.run(["true"])).exit_status == 0


async def test_a_command_on_a_frozen_server_ends_in_its_time(sshd: Sshd) -> None:
    async with pool_of(sshd.host_config()) as pool:
        link = pool.link("rig")
        await link.run(["true"])
        sshd.freeze()
        try:
            with pytest.raises(UnreachableError, match=r"within 0\.5 s"):
                await link.run(["true"], timeout=0.5)
        finally:
            sshd.thaw()


async def test_a_server_that_accepts_and_hangs_is_given_up(sshd: Sshd) -> None:
    async with silent_server() as port:
        host = HostConfig(name="mute", address=f"127.0.0.1:{port}")
        async with pool_of(host, settings=Settings(connect_timeout=0.5)) as pool:
            with pytest.raises(UnreachableError, match="did not complete the login"):
                await pool.link("mute").run(["true"])
            assert pool.link("mute").status.state is not LinkState.UP


async def test_a_short_timeout_also_bounds_the_connecting(sshd: Sshd) -> None:
    async with silent_server() as port:
        host = HostConfig(name="mute", address=f"127.0.0.1:{port}")
        async with pool_of(host) as pool:
            with pytest.raises(UnreachableError, match=r"within 0\.3 s"):
                await pool.link("mute").run(["true"], timeout=0.3)


async def test_closing_while_connecting_hangs_on_nothing(sshd: Sshd) -> None:
    async with silent_server() as port, asyncio.timeout(10):
        host = HostConfig(name="mute", address=f"127.0.0.1:{port}")
        async with pool_of(host) as pool:
            pool.link("mute").connect()
            await asyncio.sleep(0)


async def test_closing_with_a_frozen_server_is_bounded(sshd: Sshd) -> None:
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(pool_of(sshd.host_config()))
        link = pool.link("rig")
        running = asyncio.create_task(link.run(["sleep", "20"]))
        await until(lambda: sshd.commands())
        sshd.freeze()
        try:
            async with asyncio.timeout(10):
                await pool.close()
            with pytest.raises(UnreachableError):
                await running
        finally:
            sshd.thaw()
    with pytest.raises(UnreachableError, match="closing"):
        await link.run(["true"])


async def test_a_name_that_does_not_exist(sshd: Sshd) -> None:
    host = HostConfig(name="nowhere", address="no-such-host.invalid")
    async with pool_of(host) as pool:
        with pytest.raises(UnreachableError, match="cannot be looked up"):
            await pool.link("nowhere").run(["true"])


async def test_a_port_without_ssh(sshd: Sshd) -> None:
    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\x1b]0;owned\x07\r\n\r\n" * 50)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    host = HostConfig(name="web", address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with pool_of(host) as pool:
        with pytest.raises(UnreachableError) as caught:
            await pool.link("web").run(["true"])
        assert "\x1b" not in str(caught.value)
    server.close()


async def test_a_failed_login_stops_the_attempts_until_asked(sshd: Sshd) -> None:
    keys = (sshd.folder / "authorized_keys").read_text()
    (sshd.folder / "authorized_keys").write_text("")
    async with pool_of(sshd.host_config()) as pool:
        link = pool.link("rig")
        with pytest.raises(RefusedError, match="was not let in"):
            await link.run(["true"])
        assert link.status.state is LinkState.AUTH_FAILED
        assert link.status.retry_at is None
        connections = sshd.log.read_text().count("Connection from")
        for _ in range(3):
            with pytest.raises(RefusedError):
                await link.run(["true"])
        assert sshd.log.read_text().count("Connection from") == connections
        (sshd.folder / "authorized_keys").write_text(keys)
        await link.retry_now()
        assert (await link.run(["true"])).exit_status == 0
        assert link.status.state is LinkState.UP


async def test_an_encrypted_key_is_named_when_the_login_fails(sshd: Sshd) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "secret", "-P", "", "-f", str(sshd.user_key)],
        check=True,
        capture_output=True,
    )
    async with pool_of(sshd.host_config()) as pool:
        with pytest.raises(RefusedError, match="is encrypted") as caught:
            await pool.link("rig").run(["true"])
        assert "ssh-add" in caught.value.what


async def test_an_identity_file_of_the_inventory_is_used(sshd: Sshd) -> None:
    host = HostConfig(
        name="plain", address=f"{sshd.user}@127.0.0.1:{sshd.port}", identity_file="~/.ssh/id_rig"
    )
    async with pool_of(host) as pool:
        assert (await pool.link("plain").run(["true"])).exit_status == 0


async def test_a_missing_identity_file_is_a_configuration_error(sshd: Sshd) -> None:
    async with pool_of(sshd.host_config(identity_file="~/.ssh/nope")) as pool:
        with pytest.raises(ConfigError, match="nope"):
            await pool.link("rig").run(["true"])
        assert pool.link("rig").status.state is LinkState.CONFIG_ERROR


async def test_a_broken_ssh_configuration_is_named_by_line_and_can_be_mended(sshd: Sshd) -> None:
    good = sshd.ssh_config.read_text()
    sshd.ssh_config.write_text(f"# first\nMatch nonsense x\n{good}")
    async with pool_of(sshd.host_config()) as pool:
        link = pool.link("rig")
        with pytest.raises(ConfigError) as caught:
            await link.run(["true"])
        assert caught.value.where == f"{sshd.ssh_config}:2"
        assert link.status.state is LinkState.CONFIG_ERROR
        sshd.ssh_config.write_text(good)
        await link.retry_now()
        assert (await link.run(["true"])).exit_status == 0


async def test_listeners_hear_each_change_and_can_leave(pool: SshPool, sshd: Sshd) -> None:
    heard: list[LinkStatus] = []
    leave = pool.subscribe(heard.append)
    link = pool.link("rig")
    await link.run(["true"])
    assert [status.state for status in heard] == [LinkState.CONNECTING, LinkState.UP]
    sshd.drop_connections()
    await until(lambda: len(heard) >= 5)
    states = [status.state for status in heard[2:5]]
    assert states == [LinkState.LOST, LinkState.CONNECTING, LinkState.UP]
    assert heard[2].retry_at is not None
    assert heard[3].retry_at is None
    leave()
    sshd.drop_connections()
    await until(lambda: link.status.state is not LinkState.UP)
    assert len(heard) == 5


async def test_a_jump_chain_works_and_its_loss_is_seen(sshd: Sshd, tmp_path: Path) -> None:
    with Sshd(tmp_path / "inner", name="inner", jump=sshd) as inner:
        async with pool_of(inner.host_config()) as pool:
            link = pool.link("inner")
            done = await link.run(["sh", "-c", "echo $HOME"])
            assert done.stdout.decode().strip() == str(inner.remote_home)
            sshd.drop_connections()
            await until(lambda: link.status.state is not LinkState.UP)
            await link.wait_up(20)
            assert (await link.run(["true"])).exit_status == 0


async def test_a_jump_host_that_cannot_reach_the_host(sshd: Sshd, tmp_path: Path) -> None:
    inner = Sshd(tmp_path / "inner", name="inner", jump=sshd)
    async with pool_of(inner.host_config()) as pool:
        with pytest.raises(UnreachableError, match="the jump host cannot reach"):
            await pool.link("inner").run(["true"])


async def test_a_proxy_command_of_the_users_own_is_honoured(sshd: Sshd) -> None:
    nc = (
        "import socket,sys,threading,os;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
        "f=lambda:[os.write(1,d) for d in iter(lambda:s.recv(9999),b'')];"
        "t=threading.Thread(target=f,daemon=True);"
        "t.start();[s.sendall(d) for d in iter(lambda:os.read(0,9999),b'')]"
    )
    script = sshd.client_home / "nc.py"
    script.write_text(nc)
    sshd.ssh_config.write_text(
        f"Host rig\n  ProxyCommand {sys.executable} {script} 127.0.0.1 {sshd.port}\n"
        + sshd.ssh_config.read_text()
    )
    async with pool_of(sshd.host_config()) as pool:
        assert (await pool.link("rig").run(["true"])).exit_status == 0


async def test_neither_agent_nor_display_nor_terminal_is_passed_on(sshd: Sshd) -> None:
    sshd.ssh_config.write_text(
        "ForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\nRequestTTY force\nRemoteCommand echo no\n"
        + sshd.ssh_config.read_text()
    )
    async with pool_of(sshd.host_config()) as pool:
        done = await pool.link("rig").run(["sh", "-c", "env; tty"])
        assert b"SSH_AUTH_SOCK" not in done.stdout
        assert b"DISPLAY" not in done.stdout
        assert b"not a tty" in done.stdout


async def test_a_dead_agent_does_no_harm(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent/agent.sock")
    sshd.ssh_config.write_text(sshd.ssh_config.read_text().replace("IdentitiesOnly yes", ""))
    async with pool_of(sshd.host_config()) as pool:
        assert (await pool.link("rig").run(["true"])).exit_status == 0


def test_importing_the_package_does_not_import_asyncssh() -> None:
    code = (
        "import sys, dflash_backend.ssh.pool, dflash_backend.ssh.session, dflash_backend.ssh.programs;"
        "sys.exit('asyncssh' in sys.modules or 'cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


async def test_nobody_listens_at_the_port(sshd: Sshd) -> None:
    host = HostConfig(name="closed", address=f"127.0.0.1:{free_port()}")
    async with pool_of(host) as pool:
        with pytest.raises(UnreachableError, match="nothing listens"):
            await pool.link("closed").run(["true"])
