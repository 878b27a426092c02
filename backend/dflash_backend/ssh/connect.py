"""One attempt to connect: hop by hop, every host key checked, every failure put into words.

asyncssh's callback for host keys cannot tell a new key from a changed one, so ours refuses both and the
judgement comes from ``hostkeys``; the key is known before anything of the user's has been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_backend.core.errors import ConfigError, ConsoleError, RefusedError, UnreachableError
from dflash_backend.core.inventory import HostConfig
from dflash_backend.core.states import LinkState
from dflash_backend.core.text import sanitise
from dflash_backend.ssh.config import Hop, resolve
from dflash_backend.ssh.hostkeys import KeyReport, KnownHosts, Trust, Verdict

if TYPE_CHECKING:
    import asyncssh

CONNECT_TIMEOUT = 15.0
"""Seconds for one hop, from the name look-up to the end of authentication."""
KEEPALIVE_INTERVAL = 4.0
KEEPALIVE_COUNT = 2
"""A peer that says nothing for 3 x 4 s is dead."""


class LinkError(Exception):
    """A failed attempt: the state that the link is in now, and the error for whoever asked."""

    def __init__(self, state: LinkState, error: ConsoleError) -> None:
        super().__init__(error.what)
        self.state = state
        self.error = error


@dataclass(slots=True)
class Connection:
    """An authenticated connection to a host, with the jump connections that it runs through."""

    hops: list[asyncssh.SSHClientConnection]
    lost: asyncio.Future[str]
    """Done once the connection is over; the reason in words."""

    @property
    def target(self) -> asyncssh.SSHClientConnection:
        """The connection to the host itself."""
        return self.hops[-1]

    async def close(self, timeout: float = 2.0) -> None:
        """Closes everything, innermost first; a peer that does not answer is cut off after ``timeout``."""
        for hop in reversed(self.hops):
            hop.close()
        try:
            async with asyncio.timeout(timeout):
                for hop in reversed(self.hops):
                    await hop.wait_closed()
        except TimeoutError:
            for hop in reversed(self.hops):
                hop.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to connect; times in seconds. ``config_files`` None: the usual ssh configuration files."""

    known_hosts: KnownHosts = field(default_factory=KnownHosts)
    config_files: Sequence[Path] | None = None
    connect_timeout: float = CONNECT_TIMEOUT
    keepalive_interval: float = KEEPALIVE_INTERVAL
    keepalive_count: int = KEEPALIVE_COUNT


async def load_asyncssh() -> None:
    """Imports asyncssh (a third of a second) without holding up the event loop."""
    await asyncio.to_thread(importlib.import_module, "asyncssh")
    log = logging.getLogger("asyncssh")
    if not log.handlers:
        # Without a handler its warnings would be printed over the screen.
        log.addHandler(logging.NullHandler())


async def open_connection(host: HostConfig, settings: Settings) -> Connection:
    """Connects to ``host`` over its jumps. Raises LinkError; nothing stays open then."""
    hops = await _resolve(host, settings)
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    opened: list[asyncssh.SSHClientConnection] = []
    try:
        for index, hop in enumerate(hops):
            is_target = index == len(hops) - 1
            opened.append(
                await _connect(
                    host, hop, opened[-1] if opened else None, settings, lost if is_target else None
                )
            )
    except BaseException:
        await asyncio.shield(Connection(opened, lost).close())
        raise
    return Connection(opened, lost)


async def fetch_keys(host: HostConfig, settings: Settings) -> tuple[KeyReport, ...]:
    """The host key of each hop, up to and including the first that is not trusted.

    Logs in to trusted jumps only, since that is the way to the next hop. Raises LinkError.
    """
    hops = await _resolve(host, settings)
    reports: list[KeyReport] = []
    opened: list[asyncssh.SSHClientConnection] = []
    try:
        for hop in hops:
            tunnel = opened[-1] if opened else None
            trust = settings.known_hosts.look_up(hop)
            if hop is not hops[-1]:
                try:
                    opened.append(await _connect(host, hop, tunnel, settings, None))
                except LinkError as failure:
                    if failure.state not in (LinkState.KEY_UNKNOWN, LinkState.KEY_CHANGED):
                        raise
                    key = await _offered_key(host, hop, tunnel, settings, trust)
                    reports.append(trust.report(key, host=host.name, hop=hop))
                    break
                offered = opened[-1].get_server_host_key()
            else:
                offered = await _offered_key(host, hop, tunnel, settings, trust)
            assert offered is not None
            reports.append(trust.report(offered, host=host.name, hop=hop))
    finally:
        if opened:
            await asyncio.shield(Connection(opened, asyncio.get_running_loop().create_future()).close())
    return tuple(reports)


async def _resolve(host: HostConfig, settings: Settings) -> tuple[Hop, ...]:
    await load_asyncssh()
    try:
        return await asyncio.to_thread(resolve, host, settings.config_files)
    except ConfigError as problem:
        raise LinkError(LinkState.CONFIG_ERROR, problem) from problem


async def _connect(
    host: HostConfig,
    hop: Hop,
    tunnel: asyncssh.SSHClientConnection | None,
    settings: Settings,
    lost: asyncio.Future[str] | None,
) -> asyncssh.SSHClientConnection:
    import asyncssh

    trust = settings.known_hosts.look_up(hop)
    offered: list[asyncssh.SSHKey] = []
    reached: list[asyncssh.SSHClientConnection] = []

    class Client(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            reached.append(conn)

        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            offered.append(key)
            return False

        def connection_lost(self, exc: Exception | None) -> None:
            if lost is not None and not lost.done():
                lost.set_result(sanitise(str(exc), multiline=False, limit=300) if exc else "closed")

    try:
        async with asyncio.timeout(settings.connect_timeout):
            return await asyncssh.connect(
                **hop.arguments,
                tunnel=tunnel,
                client_factory=Client,
                known_hosts=_trusted(trust),
                connect_timeout=settings.connect_timeout,
                login_timeout=settings.connect_timeout,
                keepalive_interval=settings.keepalive_interval,
                keepalive_count_max=settings.keepalive_count,
            )
    except (asyncssh.DisconnectError, ConnectionError) as problem:
        if not offered and reached and reached[0].get_server_host_key() is None:
            # A certificate that nobody vouches for, or only types of keys other than the known ones (whoever
            # notices first hangs up): look at the plain key.
            with contextlib.suppress(LinkError):
                offered.append(await _offered_key(host, hop, tunnel, settings, None))
        if offered:
            report = trust.report(offered[-1], host=host.name, hop=hop)
            if report.verdict is not Verdict.TRUSTED:
                raise _refused(report, problem) from problem
        raise _failure(host, hop, problem, settings) from problem
    except (asyncssh.Error, OSError, ValueError) as problem:
        raise _failure(host, hop, problem, settings) from problem


async def _offered_key(
    host: HostConfig,
    hop: Hop,
    tunnel: asyncssh.SSHClientConnection | None,
    settings: Settings,
    trust: Trust | None,
) -> asyncssh.SSHKey:
    """The key that the host shows, without logging in; of a known type when ``trust`` lists one it has."""
    import asyncssh

    names = ("host", "port", "config")
    arguments = {name: hop.arguments[name] for name in names}
    wanted = [alg for key, _ in trust.keys for alg in key.sig_algorithms] if trust and not trust.loose else []
    problem: Exception | None = None
    for algorithms in ([alg.decode() for alg in wanted], ()):
        if algorithms == []:
            continue
        try:
            async with asyncio.timeout(settings.connect_timeout):
                key = await asyncssh.get_server_host_key(
                    **arguments, tunnel=tunnel, server_host_key_algs=algorithms
                )
            if key is not None:
                return key
        except (asyncssh.DisconnectError, ConnectionError) as failed:
            problem = failed  # none of the known types
        except (asyncssh.Error, OSError, ValueError) as failed:
            raise _failure(host, hop, failed, settings) from failed
    raise _failure(host, hop, problem or OSError("the host showed no key"), settings)


def _trusted(trust: Trust) -> Callable[[str, str, int | None], Sequence[object]]:
    # A function, since a list of files or entries would be matched by asyncssh's own, looser rules (by
    # address, by name without port) and an empty one would mean the user's default file.
    return lambda _host, _addr, _port: (
        [key for key, _ in trust.keys],
        list(trust.authorities),
        list(trust.revoked),
    )


def key_refusal(report: KeyReport) -> RefusedError:
    """The refusal of a key that is not trusted: both fingerprints, and how to compare."""
    where = f"host {report.host}" if report.host == report.hop else f"host {report.host}, hop {report.hop}"
    if report.verdict is Verdict.REVOKED:
        return RefusedError(
            f"the {report.type} key of {report.name} is marked @revoked: {report.fingerprint}",
            where=where,
            unchanged="nothing was sent to the host",
            next_step="ask whoever runs the host for its new key",
        )
    if report.verdict is Verdict.CHANGED:
        known = ", ".join(f"{key.fingerprint} ({key.type}, {key.source})" for key in report.known)
        return RefusedError(
            f"the key of {report.name} has CHANGED: it shows {report.fingerprint} ({report.type}), "
            f"known is {known}",
            where=where,
            unchanged="nothing was sent to the host; someone may be answering in its place",
            next_step=f"find out why it changed; compare with `{report.compare}` on the host; "
            f"then `dflash-console hosts trust {report.host} --replace`",
        )
    return RefusedError(
        f"the key of {report.name} is not known yet: {report.fingerprint} ({report.type})",
        where=where,
        unchanged="nothing was sent to the host",
        next_step=f"compare with `{report.compare}` on the host, "
        f"then `dflash-console hosts trust {report.host}`",
    )


def _refused(report: KeyReport, problem: Exception) -> LinkError:
    state = LinkState.KEY_UNKNOWN if report.verdict is Verdict.UNKNOWN else LinkState.KEY_CHANGED
    error = key_refusal(report)
    error.__cause__ = problem
    return LinkError(state, error)


def _failure(host: HostConfig, hop: Hop, problem: Exception, settings: Settings) -> LinkError:
    """Puts an exception of asyncssh or of the system into words."""
    import asyncssh

    where = f"host {host.name}" if hop.label == host.address else f"host {host.name}, hop {hop.label}"
    reason = sanitise(str(problem), multiline=False, limit=300)
    address = f"{hop.host} port {hop.port}"
    if isinstance(problem, asyncssh.PermissionDenied) or "authentication failures" in reason:
        return LinkError(
            LinkState.AUTH_FAILED,
            RefusedError(
                f"{hop.user}@{hop.host} was not let in: {reason}"
                + "".join(f"; {note}" for note in hop.notes),
                where=where,
                unchanged="no further attempts are made until you ask for one",
                next_step=f"make `ssh {hop.label}` work without a password, then try again",
            ),
        )
    if isinstance(
        problem, asyncssh.KeyExchangeFailed | asyncssh.HostKeyNotVerifiable | asyncssh.KeyImportError
    ):
        return LinkError(
            LinkState.CONFIG_ERROR,
            ConfigError(reason, where=where, next_step=f"compare with `ssh -v {hop.label}`"),
        )
    if isinstance(problem, ValueError) and not isinstance(problem, UnicodeError | asyncssh.Error):
        return LinkError(
            LinkState.CONFIG_ERROR,
            ConfigError(reason, where=where, next_step="correct the ssh configuration of this host"),
        )
    if isinstance(problem, TimeoutError):
        what = f"{address} did not complete the login within {settings.connect_timeout:g} s"
    elif isinstance(problem, socket.gaierror):
        what = f"the name {hop.host} cannot be looked up: {problem.strerror}"
    elif isinstance(problem, ConnectionRefusedError):
        what = f"nothing listens at {address}"
    elif isinstance(problem, asyncssh.ChannelOpenError):
        what = f"the jump host cannot reach {address}: {reason}"
    else:
        what = f"{address}: {reason or type(problem).__name__}"
    return LinkError(
        LinkState.LOST,
        UnreachableError(what, where=where, next_step=f"check that `ssh {hop.label}` works from here"),
    )
