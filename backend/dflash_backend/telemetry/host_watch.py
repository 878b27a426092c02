"""One host, watched through one long-running monitor over SSH; begun again whenever it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, FailedError, UnreachableError
from dflash_backend.core.samples import HostSample
from dflash_backend.core.states import LinkState
from dflash_backend.ssh.link import HostLink, RemoteProcess
from dflash_backend.ssh.programs import JsonLines, result
from dflash_backend.telemetry.host_reader import HostReader
from dflash_backend.telemetry.run_log import RunLog

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
PING_S = 10.0
"""The monitor ends by itself when these stop: a connection may die without a word."""
SILENT_S = 20.0
"""A monitor that says nothing for so long on a connection that is up is begun again."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class HostWatch:
    """``run`` watches until it is cancelled; ``sample`` is the newest tick, ``problem`` why there is none."""

    def __init__(
        self,
        link: HostLink,
        ports: Iterable[int],
        *,
        changed: Callable[[str], None],
        clock: Clock = wall,
    ) -> None:
        """``changed`` is called with the host's name after each tick and each change of ``problem``."""
        self.link = link
        self.name = link.config.name
        self.sample: HostSample | None = None
        self.problem = ""
        self._ports = sorted(set(ports))
        self._changed = changed
        self._clock = clock
        self._reader = HostReader(self.name)

    def log_of(self, run_id: str) -> RunLog | None:
        """What is known of a run's log."""
        return self._reader.logs.get(run_id)

    async def run(self) -> None:
        """Watches for ever."""
        pause = FIRST_PAUSE_S
        while True:
            began = self._clock()
            try:
                await self._watch()
                self._tell("the monitor ended without a word")
            except UnreachableError:
                # The state of the link says it, with its reason and its age.
                self._tell("")
            except ConsoleError as error:
                needs_human = self.link.status.state.needs_human
                self._tell(
                    "" if needs_human else "; ".join(error.lines()[:3]).removeprefix(f"host {self.name}: ")
                )
            except Exception:
                # A fault of ours: the host is shown as not watchable, the fleet goes on.
                log.exception("watching host %s failed", self.name)
                self._tell("watching the host failed: see the console's log")
            pause = FIRST_PAUSE_S if self._clock() - began > LONGEST_PAUSE_S else pause
            await asyncio.sleep(pause)
            up = self.link.status.state is LinkState.UP
            # While the link is down the next call is cheap and waits for it; otherwise do not hammer.
            pause = min(LONGEST_PAUSE_S, pause * 2) if up else FIRST_PAUSE_S

    async def _watch(self) -> None:
        request = {"root": None, "ports": self._ports, "interval": INTERVAL_S}
        async with self.link.stream_program("monitor", request) as process:
            self._reader.restart()
            pinging = asyncio.create_task(self._ping(process))
            try:
                await self._read(process)
            finally:
                pinging.cancel()

    async def _read(self, process: RemoteProcess) -> None:
        lines = JsonLines()
        chunks = process.chunks()
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise FailedError(f"the monitor was silent for {SILENT_S:.0f} s") from None
            for message in lines.feed(chunk):
                if isinstance(message, dict) and ("ok" in message or "error" in message):
                    result(message, host=f"host {self.name}")
                    return
                sample = self._reader.read(message, self._clock())
                if sample is not None:
                    self.sample = sample
                    self._tell("")

    @staticmethod
    async def _ping(process: RemoteProcess) -> None:
        while True:
            await process.write(json.dumps({"ping": True}).encode() + b"\n")
            await asyncio.sleep(PING_S)

    def _tell(self, problem: str) -> None:
        self.problem = problem
        self._changed(self.name)
