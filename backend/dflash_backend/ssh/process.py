"""Commands on an open connection: bounded, and gone from the host when the caller is gone.

Cancelling a task does not end what it started over SSH: the process goes on and its session counts against
the server's MaxSessions. So every command is opened, ended and closed by a task of its own, which the
caller's cancellation cannot reach.

sshd passes a signal on only when the login is not root's, so a command first tells its process group, and
what a signal does not reach is ended over a second session.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from dflash_backend.core.errors import FailedError, UnreachableError
from dflash_backend.ssh.commands import end_group, shell_command, traced
from dflash_backend.ssh.programs import JsonLines, Preamble, not_started, result

if TYPE_CHECKING:
    import asyncssh

CHUNK = 64 * 1024
MAX_STDERR = 64 * 1024
SIGNAL_WAIT = 0.5
"""Seconds that a signal sent through the channel is given to work."""
END_WAIT = 4.0
"""Seconds for the second session: opening it, TERM, two seconds of grace, KILL."""
CALLER_WAIT = 2.0
"""Seconds that a caller is held until its command has gone; after that the work goes on without it."""


class SshProcess:
    """A running command (see ``link.RemoteProcess``). Made by ``open_process`` only."""

    def __init__(
        self,
        process: asyncssh.SSHClientProcess[bytes],
        connection: asyncssh.SSHClientConnection,
        host: str,
        seen: Callable[[], None],
        mark: bytes,
    ) -> None:
        self._process = process
        self._connection = connection
        self._host = host
        self._seen = seen
        self._mark = mark
        self._group: int | None = None
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
            if self._runs():
                with contextlib.suppress(OSError):
                    process.terminate()
                as_root = self._connection.get_extra_info("username") == "root"
                if not as_root and await self._drained(SIGNAL_WAIT):
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_WAIT):
                        await self._end_group()
        finally:
            process.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await process.wait_closed()
            self._stderr_reader.cancel()

    def _runs(self) -> bool:
        return self._process.returncode is None and not self._connection.is_closed()

    async def _end_group(self) -> None:
        while self._runs():
            if self._group:
                killer = _in_background(self._kill(self._group))
                while not killer.done():
                    if await self._drained(0.1):
                        return
            # The command may not have told its group yet, or the server have no session to spare.
            if await self._drained(0.1):
                return

    async def _kill(self, group: int) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            await self._connection.run(shell_command(end_group(group)), encoding=None, request_pty=False)

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
                if self._group is None:
                    self._take_group()
                if len(self._stderr) > MAX_STDERR:
                    del self._stderr[:-MAX_STDERR]

    def _take_group(self) -> None:
        before, mark, after = bytes(self._stderr).partition(self._mark + b" ")
        group, newline, rest = after.partition(b"\n")
        if mark and newline:
            self._stderr[:] = before + rest
            self._group = int(group) if group.isdigit() else 0

    def _lost(self) -> UnreachableError:
        return UnreachableError(
            "the connection went before the command had ended",
            where=f"host {self._host}",
            unchanged="whether the command finished is not known",
            next_step="try again once the host is back",
        )


class ProgramProcess:
    """A running host program (see ``link.RemoteProcess``): its output starts where the program's does."""

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
        """The program's JSON lines, decoded and clean, ``{"ok": …}`` last. Raises what an error says."""
        lines = JsonLines()
        async for chunk in self.chunks():
            for message in lines.feed(chunk):
                if isinstance(message, dict) and "error" in message:
                    result(message, host=f"host {self._host}")
                yield message


class SessionSlots:
    """How many sessions may be open at once on one host, and how many are."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self.used = 0

    async def take(self) -> None:
        """Waits for a slot."""
        await self._free.acquire()
        self.used += 1

    def give(self) -> None:
        """Returns a slot."""
        self.used -= 1
        self._free.release()


@contextlib.asynccontextmanager
async def open_process(
    connection: asyncssh.SSHClientConnection,
    argv: Sequence[str],
    *,
    host: str,
    slots: SessionSlots,
    seen: Callable[[], None],
) -> AsyncIterator[SshProcess]:
    """Runs ``argv`` in a session of its own; leaving ends it. At most as many at once as ``slots`` has.

    Waits for a slot and for a free session of the server without bound: the caller sets the timeout.
    Raises UnreachableError, FailedError when the server gives no session at all.
    """
    mark = f"dflash-{secrets.token_hex(8)}"
    command = shell_command(traced(argv, mark))
    await slots.take()
    abandoned = asyncio.Event()
    opening = asyncio.create_task(_open(connection, command, host, slots, abandoned))
    process: SshProcess | None = None

    async def put_away() -> None:
        try:
            if process is not None:
                await process.end()
            else:
                with contextlib.suppress(UnreachableError, FailedError):
                    await SshProcess(await opening, connection, host, seen, mark.encode()).end()
        finally:
            slots.give()

    try:
        process = SshProcess(await asyncio.shield(opening), connection, host, seen, mark.encode())
        yield process
    finally:
        abandoned.set()
        ending = _in_background(put_away())
        # A host that does not answer any more must not hold the caller; the task goes on without it.
        await asyncio.wait((ending,), timeout=CALLER_WAIT)


_BACKGROUND: set[asyncio.Task[None]] = set()
"""Keeps tasks that outlive a cancelled caller from being collected."""


def _in_background(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)
    return task


async def _open(
    connection: asyncssh.SSHClientConnection,
    command: str,
    host: str,
    slots: SessionSlots,
    abandoned: asyncio.Event,
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
            # MaxSessions is used up: by calls of ours, or by sessions that are just being closed.
            refused = refused + 1 if slots.used <= 1 else 0
            if refused >= 8 or abandoned.is_set():
                raise FailedError(
                    f"the host gives no further session: {problem.reason}",
                    where=f"host {host}",
                    next_step="raise MaxSessions in its sshd_config, or close other sessions of this user",
                ) from problem
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(abandoned.wait(), 0.25)
        except (asyncssh.Error, OSError) as problem:
            raise UnreachableError(
                f"the connection was lost: {problem}",
                where=f"host {host}",
                next_step="try again once the host is back",
            ) from problem
