"""Commands on an open connection: bounded, and gone from the host when the caller is gone.

Cancelling a task does not end what it started over SSH: the process goes on and its session counts against the
server's MaxSessions. So every command is opened, ended and closed by a task of its own, which the caller's
cancellation cannot reach.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from dflash_backend.core.errors import FailedError, UnreachableError
from dflash_backend.ssh.programs import JsonLines, Preamble, not_started, result

if TYPE_CHECKING:
    import asyncssh

CHUNK = 64 * 1024
MAX_STDERR = 64 * 1024
TERM_GRACE = 2.0
"""Seconds from TERM to KILL when a command is ended from here."""


class SshProcess:
    """A running command (see ``link.RemoteProcess``). Made by ``open_process`` only."""

    def __init__(
        self,
        process: asyncssh.SSHClientProcess[bytes],
        connection: asyncssh.SSHClientConnection,
        host: str,
        seen: Callable[[], None],
    ) -> None:
        self._process = process
        self._connection = connection
        self._host = host
        self._seen = seen
        self._stderr = bytearray()
        self._stderr_reader = asyncio.create_task(self._keep_stderr())

    async def chunks(self) -> AsyncIterator[bytes]:
        """Standard output as it comes. Raises UnreachableError when the connection goes first."""
        while True:
            chunk = await self._read(self._process.stdout)
            if not chunk:
                if self._connection.is_closed() and self._process.returncode is None:
                    raise self._lost()
                return
            yield chunk

    async def write(self, data: bytes) -> None:
        """Sends ``data``; a command that no longer reads is no error, its exit status tells."""
        import asyncssh

        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return
        except (asyncssh.Error, OSError) as problem:
            raise self._lost() from problem

    async def close_stdin(self) -> None:
        """Sends end of file."""
        with contextlib.suppress(OSError):
            self._process.stdin.write_eof()

    async def wait(self) -> int:
        """The exit status, negative for a signal. Reads and drops what is left of standard output."""
        while await self._read(self._process.stdout):
            pass
        await self._process.wait_closed()
        await self._stderr_reader
        status = self._process.returncode
        if status is None:
            raise self._lost()
        self._seen()
        return status

    async def stderr(self) -> bytes:
        """The last 64 KiB of standard error so far."""
        return bytes(self._stderr)

    async def end(self) -> None:
        """Ends the command and closes the channel, whatever state they are in; bounded in time."""
        process = self._process
        try:
            if process.returncode is None and not process.is_closing():
                with contextlib.suppress(OSError):
                    process.terminate()
                if not await self._drained(TERM_GRACE) and process.returncode is None:
                    with contextlib.suppress(OSError):
                        process.kill()
                    await self._drained(1.0)
        finally:
            process.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await process.wait_closed()
            self._stderr_reader.cancel()

    async def _drained(self, timeout: float) -> bool:
        # Unread output would hold the channel open, so it is read and dropped.
        try:
            async with asyncio.timeout(timeout):
                while await self._process.stdout.read(CHUNK):
                    pass
                return True
        except TimeoutError:
            return False
        except (UnreachableError, OSError):
            return True

    async def _read(self, stream: asyncssh.SSHReader[bytes]) -> bytes:
        import asyncssh

        try:
            chunk = await stream.read(CHUNK)
        except (asyncssh.Error, OSError) as problem:
            raise self._lost() from problem
        if chunk:
            self._seen()
        return chunk

    async def _keep_stderr(self) -> None:
        with contextlib.suppress(UnreachableError):
            while chunk := await self._read(self._process.stderr):
                self._stderr += chunk
                if len(self._stderr) > MAX_STDERR:
                    del self._stderr[:-MAX_STDERR]

    def _lost(self) -> UnreachableError:
        return UnreachableError(
            "the connection went before the command had ended",
            where=f"host {self._host}",
            unchanged="whether the command finished is not known",
            next_step="try again once the host is back",
        )


class ProgramProcess:
    """A running host program (see ``link.RemoteProcess``): an ``SshProcess`` whose output starts at the program's."""

    def __init__(self, process: SshProcess, nonce: bytes, host: str, python: str | None) -> None:
        self._process = process
        self._preamble = Preamble(nonce)
        self._first = b""
        self._host = host
        self._python = python
        self.write = process.write
        self.close_stdin = process.close_stdin
        self.wait = process.wait
        self.stderr = process.stderr

    async def reach(self) -> None:
        """Reads until the program has begun. Raises ConfigError, FailedError when there is no interpreter."""
        async for chunk in self._process.chunks():
            self._first = self._preamble.feed(chunk)
            if self._preamble.passed:
                return
        status = await self._process.wait()
        raise not_started(
            status, await self._process.stderr(), host=f"host {self._host}", python=self._python
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The program's standard output as it comes, raw."""
        first, self._first = self._first, b""
        if first:
            yield first
        async for chunk in self._process.chunks():
            yield chunk

    async def messages(self) -> AsyncIterator[object]:
        """The program's JSON lines, decoded and clean. An ``{"error": …}`` is raised; ``{"ok": …}`` is the last."""
        lines = JsonLines()
        async for chunk in self.chunks():
            for message in lines.feed(chunk):
                if isinstance(message, dict) and "error" in message:
                    result(message, host=f"host {self._host}")
                yield message


@contextlib.asynccontextmanager
async def open_process(
    connection: asyncssh.SSHClientConnection,
    command: str,
    *,
    host: str,
    slots: asyncio.Semaphore,
    seen: Callable[[], None],
) -> AsyncIterator[SshProcess]:
    """Runs ``command`` in a session of its own; leaving ends it. At most as many at once as ``slots`` has.

    Waits for a slot and for a free session of the server without bound: the caller sets the timeout.
    Raises UnreachableError, FailedError when the server gives no session at all.
    """
    await slots.acquire()
    abandoned = asyncio.Event()
    opening = asyncio.create_task(_open(connection, command, host, abandoned))
    process: SshProcess | None = None

    async def put_away() -> None:
        try:
            if process is not None:
                await process.end()
            else:
                with contextlib.suppress(UnreachableError, FailedError):
                    await SshProcess(await opening, connection, host, seen).end()
        finally:
            slots.release()

    try:
        process = SshProcess(await asyncio.shield(opening), connection, host, seen)
        yield process
    finally:
        abandoned.set()
        ending = asyncio.create_task(put_away())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        # A host that does not answer any more must not hold the caller; the task goes on without it.
        await asyncio.wait((ending,), timeout=TERM_GRACE + 1.5)


_ENDING: set[asyncio.Task[None]] = set()
"""Keeps tasks that outlive a cancelled caller from being collected."""


async def _open(
    connection: asyncssh.SSHClientConnection, command: str, host: str, abandoned: asyncio.Event
) -> asyncssh.SSHClientProcess[bytes]:
    import asyncssh

    refused = 0
    while True:
        try:
            return await connection.create_process(command, encoding=None, request_pty=False)
        except asyncssh.ChannelOpenError as problem:
            if connection.is_closed():
                raise UnreachableError(
                    "the connection was lost",
                    where=f"host {host}",
                    next_step="try again once the host is back",
                ) from problem
            refused += 1
            if refused >= 100 or abandoned.is_set():
                raise FailedError(
                    f"the host gives no further session: {problem.reason}",
                    where=f"host {host}",
                    next_step="raise MaxSessions in its sshd_config, or close other sessions of this user",
                ) from problem
            # MaxSessions is used up, perhaps by sessions that are just being closed.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(abandoned.wait(), 0.25)
        except (asyncssh.Error, OSError) as problem:
            raise UnreachableError(
                f"the connection was lost: {problem}",
                where=f"host {host}",
                next_step="try again once the host is back",
            ) from problem
