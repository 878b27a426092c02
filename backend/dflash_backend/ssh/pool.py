"""All hosts of the inventory: one supervised connection each, made when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import UsageError
from dflash_backend.core.inventory import HostConfig
from dflash_backend.core.samples import LinkStatus
from dflash_backend.ssh.connect import LinkError, Settings, fetch_keys, key_refusal
from dflash_backend.ssh.hostkeys import KeyReport, Verdict
from dflash_backend.ssh.session import SshLink


class SshPool:
    """The connections to ``hosts`` (see ``link.HostPool``).

    ``settings`` say how to connect; their default reads the user's ssh configuration and known_hosts files.
    """

    def __init__(
        self,
        hosts: Mapping[str, HostConfig],
        *,
        settings: Settings | None = None,
        clock: Clock = wall,
    ) -> None:
        self._settings = settings or Settings()
        self._listeners: set[Callable[[LinkStatus], None]] = set()
        self._links = {
            name: SshLink(host, settings=self._settings, clock=clock, changed=self._tell)
            for name, host in hosts.items()
        }

    def link(self, host: str) -> SshLink:
        """The link of a configured host. Raises UsageError for another name."""
        try:
            return self._links[host]
        except KeyError:
            raise UsageError(
                f"there is no host {host!r} in the configuration",
                next_step=f"configured hosts: {', '.join(self._links) or 'none'}",
            ) from None

    def statuses(self) -> tuple[LinkStatus, ...]:
        """The state of every connection, in the inventory's order."""
        return tuple(link.status for link in self._links.values())

    def subscribe(self, listener: Callable[[LinkStatus], None]) -> Callable[[], None]:
        """Calls ``listener`` at each change of a connection's state; returns the function that ends it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _tell(self, status: LinkStatus) -> None:
        for listener in tuple(self._listeners):
            listener(status)

    async def key_reports(self, host: str) -> tuple[KeyReport, ...]:
        """The host key of every hop to ``host`` up to the first one that is not trusted (so: the last item).

        Nothing is written and no secret is used on a host that is not trusted. Raises as the link does.
        """
        try:
            return await fetch_keys(self.link(host).config, self._settings)
        except LinkError as failure:
            raise failure.error from failure

    async def trust(self, report: KeyReport, *, replace: bool = False) -> None:
        """Writes exactly the reported key to our known_hosts file and connects with it.

        Raises RefusedError for a revoked key, and for a changed one without ``replace``.
        """
        if report.verdict is Verdict.REVOKED or (report.verdict is Verdict.CHANGED and not replace):
            raise key_refusal(report)
        if report.verdict is not Verdict.TRUSTED:
            self._settings.known_hosts.add(report)
        await self.link(report.host).retry_now()

    async def forget(self, host: str) -> tuple[str, ...]:
        """Removes the keys of ``host`` from our file; what was removed, and where others still list it."""
        return await self.link(host).forget_keys()

    async def close(self) -> None:
        """Closes every connection, within about four seconds."""
        await asyncio.gather(*(link.close() for link in self._links.values()))
