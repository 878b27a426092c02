"""Ports of the host on this machine: over reconnections, over dead ports, and closed without hanging."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from dflash_backend.core.errors import UnreachableError
from dflash_backend.core.states import LinkState
from dflash_backend.ssh.pool import SshPool
from dflash_backend.ssh.session import SshLink
from rigs.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd


@contextlib.asynccontextmanager
async def echo_server(port: int = 0) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def talk(port: int, data: bytes = b"hello") -> bytes:
    """What comes back through the forward; nothing when it closes at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def until(condition: Callable[[], object], deadline: float = 20.0) -> None:
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_one_local_port_per_remote_port(link: SshLink) -> None:
    async with echo_server() as remote:
        first, second = await asyncio.gather(link.forward(remote), link.forward(remote))
        assert first == second
        assert await link.forward(remote + 1 if remote < 65535 else 1) != first
        assert await talk(first) == b"hello"


async def test_many_clients_and_much_data_at_once(link: SshLink) -> None:
    async with echo_server() as remote:
        port = await link.forward(remote)
        data = bytes(range(256)) * 4096
        answers = await asyncio.gather(*(talk(port, data) for _ in range(12)))
        assert all(answer == data for answer in answers)


async def test_a_half_closed_connection_still_delivers(link: SshLink) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(question.upper())
        writer.close()

    server = await asyncio.start_server(late, "127.0.0.1", 0)
    port = await link.forward(server.sockets[0].getsockname()[1])
    assert await talk(port, b"question") == b"QUESTION"
    server.close()


async def test_a_dead_port_harms_nobody_and_works_once_it_is_alive(link: SshLink) -> None:
    remote = free_port()
    port = await link.forward(remote)
    assert await talk(port) == b""
    assert "nothing listens" in await link.port_refusal(remote)
    assert link.status.state is LinkState.UP
    async with echo_server(remote):
        assert await talk(port) == b"hello"
        assert await link.port_refusal(remote) == ""


async def test_the_same_local_port_after_a_reconnection(link: SshLink, sshd: Sshd) -> None:
    async with echo_server() as remote:
        port = await link.forward(remote)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        sshd.drop_connections()
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        await until(lambda: link.status.state is not LinkState.UP)
        await link.wait_up(20)
        assert await link.forward(remote) == port
        assert await talk(port) == b"hello"


async def test_a_client_that_leaves_at_once_leaves_nothing(link: SshLink) -> None:
    async with echo_server() as remote:
        port = await link.forward(remote)
        for _ in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()
        assert await talk(port) == b"hello"
        assert (await link.run(["true"])).exit_status == 0
        assert link._connection is not None
        channels = link._connection.target._channels
        await until(lambda: not channels)


async def test_closing_with_busy_clients_does_not_hang(sshd: Sshd) -> None:
    pool = SshPool({"rig": sshd.host_config()})
    link = pool.link("rig")
    async with echo_server() as remote:
        port = await link.forward(remote)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 5_000_000)  # and nobody reads the echo: both directions are stuck
        await reader.readexactly(1)
        async with asyncio.timeout(10):
            await pool.close()
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_the_local_port_is_bound_to_loopback_alone(link: SshLink) -> None:
    port = await link.forward(free_port())
    forward = link._forwards
    (starting,) = forward.values()
    assert starting.result()._server is not None
    assert [item.getsockname() for item in starting.result()._server.sockets] == [("127.0.0.1", port)]


async def test_a_server_that_forbids_forwarding_is_said(sshd: Sshd) -> None:
    sshd.options["AllowTcpForwarding"] = "no"
    sshd.restart()
    pool = SshPool({"rig": sshd.host_config()})
    try:
        link = pool.link("rig")
        async with echo_server() as remote:
            assert await talk(await link.forward(remote)) == b""
            assert "forbids forwarding" in await link.port_refusal(remote)
    finally:
        await pool.close()


async def test_no_forward_without_a_connection(sshd: Sshd) -> None:
    sshd.stop()
    pool = SshPool({"rig": sshd.host_config()})
    with pytest.raises(UnreachableError):
        await pool.link("rig").forward(1234)
    await pool.close()
