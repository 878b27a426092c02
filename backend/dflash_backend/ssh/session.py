"""The link to one host: a connection that is kept, and commands, programs and ports over it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, RefusedError, UnreachableError
from dflash_backend.core.inventory import HostConfig
from dflash_backend.core.samples import LinkStatus
from dflash_backend.core.states import LinkState
from dflash_backend.core.text import sanitise
from dflash_backend.ssh.config import resolve
from dflash_backend.ssh.connect import Connection, LinkError, Settings, load_asyncssh, open_connection
from dflash_backend.ssh.forward import Forward, probe
from dflash_backend.ssh.link import Completed
from dflash_backend.ssh.process import ProgramProcess, SessionSlots, SshProcess, open_process
from dflash_backend.ssh.programs import JsonLines, Preamble, not_started, program_argv, program_input, result

if TYPE_CHECKING:
    import asyncssh

MAX_SESSIONS = 6
"""Sessions at once on one host; sshd's MaxSessions is 10 by default and the user has a shell there too."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
STABLE = 30.0
"""Seconds after which a connection counts as good, so that the next pause is a short one again."""
SHORT_WAIT = 3.0
"""A call waits for the next attempt when it is due so soon; else it fails at once with the last reason."""


class SshLink:
    """One host (see ``link.HostLink``). Connects at the first call; from then on the connection is kept up.

    A call made while the host is down waits for the attempt that is under way or due within ``SHORT_WAIT``
    and fails with its reason; during a longer pause it fails at once. Attempts go on by themselves.
    """

    def __init__(
        self,
        config: HostConfig,
        *,
        settings: Settings | None = None,
        clock: Clock = wall,
        changed: Callable[[LinkStatus], None] | None = None,
        jitter: Callable[[float], float] = lambda longest: random.uniform(0.05, longest),  # noqa: S311
    ) -> None:
        self._config = config
        self._settings = settings or Settings()
        self._clock = clock
        self._changed = changed
        self._jitter = jitter
        self._state = LinkState.CONNECTING if config.enabled else LinkState.DISABLED
        self._message = "not connected yet" if config.enabled else "disabled in the configuration"
        self._since = clock()
        self._last_seen: float | None = None
        self._retry_at: float | None = None
        self._error: ConsoleError | None = None
        self._failed = 0
        self._connection: Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        self._slots = SessionSlots(MAX_SESSIONS)
        self._forwards: dict[int, asyncio.Task[Forward]] = {}
        self._closed = False

    @property
    def config(self) -> HostConfig:
        """The host's entry in the inventory."""
        return self._config

    @property
    def status(self) -> LinkStatus:
        """The state of the connection now. ``last_seen``: when the host last answered anything."""
        return LinkStatus(
            host=self._config.name,
            state=self._state,
            since=self._since,
            last_seen=self._last_seen,
            message=self._message,
            retry_at=self._retry_at,
        )

    # -- keeping the connection -----------------------------------------------------------------------

    def connect(self) -> None:
        """Begins to connect and to stay connected; returns at once. Does nothing on a disabled host."""
        if self._supervisor is None and self._config.enabled and not self._closed:
            self._supervisor = asyncio.create_task(self._supervise(), name=f"ssh {self._config.name}")

    async def retry_now(self) -> None:
        """Ends the wait for the next attempt, also after a failure that needed a human."""
        self.connect()
        if self._state is not LinkState.UP:
            self._wake.set()

    async def wait_up(self, timeout: float) -> None:
        """Waits until connected, over failed attempts. Raises as ``run`` does."""
        end = self._loop_time() + timeout
        while self._connection is None:
            news = self._news
            self.connect()
            self._raise_if_hopeless()
            try:
                async with asyncio.timeout_at(end):
                    await news.wait()
            except TimeoutError:
                raise self._unreachable() from None

    async def close(self) -> None:
        """Ends everything, within about four seconds; later calls raise UnreachableError."""
        self._closed = True
        for starting in self._forwards.values():
            if starting.done() and not starting.cancelled() and not starting.exception():
                await starting.result().close()
            starting.cancel()
        self._forwards.clear()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait((self._supervisor,), timeout=4.0)
        self._news.set()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            self._set(LinkState.CONNECTING, "connecting")
            self._wake.clear()
            try:
                connection = await self._attempt()
            except LinkError as failure:
                self._error = failure.error
                self._failed += 1
                if failure.state.needs_human:
                    self._set(failure.state, failure.error.what)
                    await self._wake.wait()
                    failures = 0
                    continue
                failures = await self._pause(failures, failure.error.what)
                continue
            began = self._loop_time()
            try:
                self._connection = connection
                self._seen()
                self._set(LinkState.UP, "")
                reason = await asyncio.shield(connection.lost)
            finally:
                self._connection = None
                await connection.close()
            self._error = UnreachableError(f"the connection was lost: {reason}", where=self._where())
            if self._loop_time() - began > STABLE:
                failures = 0
            failures = await self._pause(failures, f"connection lost: {reason}")

    async def _attempt(self) -> Connection:
        try:
            return await open_connection(self._config, self._settings)
        except LinkError:
            raise
        except Exception as problem:
            # Whatever a strange peer provokes in a library must not end the attempts.
            what = f"connecting failed: {type(problem).__name__}: {sanitise(str(problem), multiline=False)}"
            raise LinkError(LinkState.LOST, UnreachableError(what, where=self._where())) from problem

    async def _pause(self, failures: int, message: str) -> int:
        pause = self._jitter(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**failures))
        self._set(LinkState.LOST, message, retry_at=self._clock() + pause)
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
                return 0
        except TimeoutError:
            return min(failures + 1, 10)

    def _set(self, state: LinkState, message: str, retry_at: float | None = None) -> None:
        if state is not self._state:
            self._since = self._clock()
        self._state, self._message, self._retry_at = state, message, retry_at
        self._news.set()
        self._news = asyncio.Event()
        if self._changed is not None:
            self._changed(self.status)

    def _seen(self) -> None:
        self._last_seen = self._clock()

    # -- waiting for it -------------------------------------------------------------------------------

    async def _connected(self) -> asyncssh.SSHClientConnection:
        """The connection, or the reason why there is none. The caller bounds the time."""
        failed = self._failed
        while self._connection is None or self._connection.lost.done():
            news = self._news
            self.connect()
            self._raise_if_hopeless()
            if self._failed > failed or self._pausing():
                raise self._unreachable()
            await news.wait()
        return self._connection.target

    def _pausing(self) -> bool:
        """True while the next attempt is too far away to wait for it."""
        due = (self._retry_at or 0.0) - self._clock()
        return self._state is LinkState.LOST and due > SHORT_WAIT and not self._wake.is_set()

    def _raise_if_hopeless(self) -> None:
        if self._closed:
            raise UnreachableError("the console is closing its connections", where=self._where())
        if self._state is LinkState.DISABLED:
            raise RefusedError(
                "the host is disabled in the configuration",
                where=self._where(),
                next_step="set enabled = true for it",
            )
        if self._state.needs_human and not self._wake.is_set() and self._error is not None:
            raise self._again(self._error)

    def _unreachable(self) -> ConsoleError:
        if self._error is None:
            return UnreachableError("no connection yet", where=self._where(), next_step="try again")
        return self._again(self._error)

    @staticmethod
    def _again(error: ConsoleError) -> ConsoleError:
        # A new one each time: a raised exception collects the traceback of everyone who raised it.
        return type(error)(
            error.what, where=error.where, unchanged=error.unchanged, next_step=error.next_step
        )

    def _where(self) -> str:
        return f"host {self._config.name}"

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def _bounded(self, seconds: float, what: str) -> AsyncIterator[asyncio.Timeout]:
        try:
            async with asyncio.timeout(seconds) as bound:
                yield bound
        except TimeoutError:
            raise UnreachableError(
                f"{what} did not come to an end within {seconds:g} s",
                where=self._where(),
                next_step="check the host's load and the network; `hosts list` shows the connection",
            ) from None

    # -- commands and programs ------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 30.0,
        max_output: int = 4 * 1024 * 1024,
    ) -> Completed:
        """Runs a command to its end. Output over ``max_output`` bytes is dropped and ``truncated`` set."""
        async with self._bounded(timeout, "the command"), self._process(argv) as process:
            return await self._complete(process, stdin, max_output)

    @contextlib.asynccontextmanager
    async def stream(self, argv: Sequence[str], *, timeout: float = 30.0) -> AsyncIterator[SshProcess]:
        """Starts a command; ``timeout`` bounds the start alone. Leaving the context ends the command."""
        async with self._started(argv, "the command", timeout) as process:
            yield process

    async def run_program(
        self,
        program: str,
        request: object,
        *,
        timeout: float = 30.0,
        secrets: Sequence[str] = (),
    ) -> object:
        """Runs a host program to its end and returns the value of its answer (see ``programs``)."""
        stdin, nonce = program_input(program, request)
        argv = program_argv(program, self._config.python)
        preamble, lines = Preamble(nonce), JsonLines()
        last: object = None
        async with self._bounded(timeout, f"the program {program!r}"), self._process(argv) as process:
            sending = asyncio.create_task(self._send(process, stdin))
            try:
                async for chunk in process.chunks():
                    for message in lines.feed(preamble.feed(chunk)):
                        last = message
            finally:
                sending.cancel()
            status = await process.wait()
            stderr = await process.stderr()
        if not preamble.passed:
            raise not_started(status, stderr, host=self._where(), python=self._config.python)
        return result(last, host=self._where(), secrets=secrets)

    @contextlib.asynccontextmanager
    async def stream_program(
        self, program: str, request: object, *, timeout: float = 30.0
    ) -> AsyncIterator[ProgramProcess]:
        """Starts a host program and leaves its stdin open; ``timeout`` bounds the start alone."""
        stdin, nonce = program_input(program, request)
        argv = program_argv(program, self._config.python)
        async with self._started(argv, f"the program {program!r}", timeout) as process:
            running = ProgramProcess(process, nonce, self._config.name, self._config.python)
            async with self._bounded(timeout, f"the program {program!r}"):
                await process.write(stdin)
                await running.reach()
            yield running

    @contextlib.asynccontextmanager
    async def _process(self, argv: Sequence[str]) -> AsyncIterator[SshProcess]:
        connection = await self._connected()
        async with open_process(
            connection, argv, host=self._config.name, slots=self._slots, seen=self._seen
        ) as process:
            yield process

    @contextlib.asynccontextmanager
    async def _started(self, argv: Sequence[str], what: str, timeout: float) -> AsyncIterator[SshProcess]:
        async with contextlib.AsyncExitStack() as stack:
            async with self._bounded(timeout, what):
                process = await stack.enter_async_context(self._process(argv))
            yield process

    @staticmethod
    async def _send(process: SshProcess, stdin: bytes) -> None:
        with contextlib.suppress(UnreachableError):  # reading its output says the same, and better
            await process.write(stdin)
            await process.close_stdin()

    async def _complete(self, process: SshProcess, stdin: bytes, max_output: int) -> Completed:
        sending = asyncio.create_task(self._send(process, stdin))
        output = bytearray()
        truncated = False
        try:
            async for chunk in process.chunks():
                room = max_output - len(output)
                output += chunk[:room]
                truncated = truncated or len(chunk) > room
        finally:
            sending.cancel()
        return Completed(
            exit_status=await process.wait(),
            stdout=bytes(output),
            stderr=await process.stderr(),
            truncated=truncated,
        )

    # -- ports ----------------------------------------------------------------------------------------

    async def forward(self, remote_port: int) -> int:
        """The local port for ``remote_port``; the same one for the life of this link, over reconnections."""
        async with self._bounded(30.0, "the port forward"):
            await self._connected()
            return (await self._forward_to(remote_port)).local_port

    async def port_refusal(self, remote_port: int) -> str:
        """Why a connection to ``remote_port`` of the host fails now; empty when something answers there."""
        async with self._bounded(10.0, "the look at the port"):
            return await probe(await self._connected(), remote_port)

    async def _forward_to(self, remote_port: int) -> Forward:
        starting = self._forwards.get(remote_port)
        if starting is None or starting.cancelled() or (starting.done() and starting.exception()):
            starting = asyncio.create_task(self._open_forward(remote_port))
            self._forwards[remote_port] = starting
        return await asyncio.shield(starting)

    async def _open_forward(self, remote_port: int) -> Forward:
        forward = Forward(remote_port, lambda: self._connection.target if self._connection else None)
        await forward.start()
        return forward

    # -- host keys ------------------------------------------------------------------------------------

    async def forget_keys(self) -> tuple[str, ...]:
        """Removes this host's keys from our file and ends its connection; what was done, line by line."""
        await load_asyncssh()
        hop = (await asyncio.to_thread(resolve, self._config, self._settings.config_files))[-1]
        known = self._settings.known_hosts
        removed = known.remove(hop.known_name)
        lines = [f"removed {removed} key{'s' if removed != 1 else ''} of {hop.known_name} from {known.own}"]
        lines += [f"still trusted: {source}" for _, source in known.look_up(hop).keys]
        if self._connection is not None:
            await self._connection.close()
        return tuple(lines)
