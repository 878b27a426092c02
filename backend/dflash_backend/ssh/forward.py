"""Local ports that lead to ports of the host, kept over reconnections.

The listener is ours, not asyncssh's: its port stays the same when the connection is made anew, and a client
that leaves while its channel is being opened leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

CHUNK = 64 * 1024


class Forward:
    """127.0.0.1:``local_port`` here leads to 127.0.0.1:``remote_port`` there.

    While there is no connection, or nothing listens there, clients are accepted and closed at once.
    """

    def __init__(
        self, remote_port: int, connection: Callable[[], asyncssh.SSHClientConnection | None]
    ) -> None:
        self.remote_port = remote_port
        self.local_port = 0
        self.refusal = ""
        """Why the last client got through to nothing; empty when it did get through."""
        self._connection = connection
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Opens the local port and returns it."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.local_port = int(self._server.sockets[0].getsockname()[1])
        return self.local_port

    async def close(self) -> None:
        """Closes the local port and every connection through it."""
        if self._server is not None:
            self._server.close()
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        if clients:
            await asyncio.wait(clients, timeout=2.0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncssh

        try:
            connection = self._connection()
            if connection is None:
                self.refusal = "no connection to the host"
                return
            try:
                far_reader, far_writer = await connection.open_connection("127.0.0.1", self.remote_port)
            except (asyncssh.Error, OSError) as problem:
                self.refusal = _why(problem)
                return
            self.refusal = ""
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, far_writer))
                    both.create_task(_copy(far_reader, writer))
            finally:
                # abort, not close: a close waits until the other side has taken what is still on its way.
                far_writer.channel.abort()
        except* (asyncssh.Error, OSError):
            pass  # one side hung up: both ends are closed below, which is all that a client can be told
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _copy(
    reader: asyncio.StreamReader | asyncssh.SSHReader[bytes],
    writer: asyncio.StreamWriter | asyncssh.SSHWriter[bytes],
) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def probe(connection: asyncssh.SSHClientConnection, remote_port: int) -> str:
    """Tries to reach 127.0.0.1:``remote_port`` on the host: why it fails, or an empty string."""
    import asyncssh

    try:
        _, writer = await connection.open_connection("127.0.0.1", remote_port)
    except (asyncssh.Error, OSError) as problem:
        return _why(problem)
    writer.channel.abort()
    return ""


def _why(problem: Exception) -> str:
    import asyncssh

    if (
        isinstance(problem, asyncssh.ChannelOpenError)
        and problem.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
    ):
        return "the host's sshd forbids forwarding (AllowTcpForwarding)"
    if isinstance(problem, asyncssh.ChannelOpenError):
        return "nothing listens on that port of the host"
    return f"the connection was lost: {problem}"
