"""What the rest of the backend may ask of a host: the contract that the SSH connection fulfils."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from dflash_backend.core.inventory import HostConfig
from dflash_backend.core.samples import LinkStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A finished remote command. ``exit_status`` is never None: a lost channel raises instead."""

    exit_status: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """True when output over the bound was thrown away."""


class RemoteProcess(Protocol):
    """A running remote command; leaving its context ends it and closes the channel."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Standard output as it comes; ends when the command does. Back-pressure reaches the host."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends bytes to the command's standard input."""
        ...

    async def close_stdin(self) -> None:
        """Sends end of file."""
        ...

    async def wait(self) -> int:
        """The exit status. Raises UnreachableError when the connection went first."""
        ...

    async def stderr(self) -> bytes:
        """What the command has written to standard error so far (bounded)."""
        ...


class HostLink(Protocol):
    """One host. Every call waits for a connection at most ``timeout`` seconds in all.

    A call does not wait out a pause between attempts: while the host is down it fails with the reason of the
    last attempt. ``status`` tells when the next one is due.

    Raises, in every method: UnreachableError (no connection, lost, timed out), RefusedError (unknown or
    changed host key, authentication), ConfigError (ssh configuration). A cancelled call leaves no remote
    process and no open channel.
    """

    @property
    def config(self) -> HostConfig: ...

    @property
    def status(self) -> LinkStatus: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 30.0,
        max_output: int = 4 * 1024 * 1024,
    ) -> Completed:
        """Runs a command given as an argument list; quoting is done here and nowhere else."""
        ...

    async def run_program(
        self,
        program: str,
        request: object,
        *,
        timeout: float = 30.0,
        secrets: Sequence[str] = (),
    ) -> object:
        """Runs a program of ``dflash_backend.hostside`` in the host's Python and returns its JSON answer.

        ``program`` is a module name there ("runs", "doctor", …); its source goes over stdin followed by the
        request as JSON, so nothing is left on the host and nothing of the request is on an argv. The answer
        is ``{"ok": …}`` or ``{"error": {"what", "next", "kind"}}``, which is raised as the matching error.
        """
        ...

    def stream_program(
        self, program: str, request: object, *, timeout: float = 30.0
    ) -> AbstractAsyncContextManager[RemoteProcess]:
        """Starts such a program and leaves its stdin open; it ends when the channel does."""
        ...

    def stream(
        self, argv: Sequence[str], *, timeout: float = 30.0
    ) -> AbstractAsyncContextManager[RemoteProcess]:
        """Starts a command and streams it."""
        ...

    async def forward(self, remote_port: int) -> int:
        """A local port on 127.0.0.1 that leads to ``127.0.0.1:remote_port`` there; one each, kept."""
        ...

    async def port_refusal(self, remote_port: int) -> str:
        """Why 127.0.0.1:``remote_port`` of the host cannot be reached now; empty when something answers."""
        ...

    async def retry_now(self) -> None:
        """Ends the wait for the next attempt."""
        ...


class HostPool(Protocol):
    """All hosts of the inventory; connects lazily, keeps one connection each."""

    def link(self, host: str) -> HostLink:
        """The link of a configured host. Raises UsageError for another name."""
        ...

    def statuses(self) -> tuple[LinkStatus, ...]: ...

    async def close(self) -> None:
        """Closes every connection, bounded in time."""
        ...
