"""Asks one server over its HTTP port, through the SSH forward, in short rounds that end by themselves.

What is asked: until the server is ready, ``/health`` while its log shows a start that goes on (it runs a
request on the server, so it is never asked again), else ``/v1/models``, which costs nothing. Then
``/v1/loads`` and ``/metrics`` in each round, and ``/server_info`` at first, when counters fell, and now and
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, UsageError
from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.samples import EffectiveSettings, ServerFigures
from dflash_backend.core.states import StageName
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.loads import read_loads
from dflash_backend.sglang.metrics import is_metrics, read_metrics
from dflash_backend.sglang.server_info import read_effective_settings
from dflash_backend.ssh.link import HostLink
from dflash_backend.telemetry.derive import HttpAnswer
from dflash_backend.telemetry.figures import NO_METRICS, FigureMaker, Readings
from dflash_backend.telemetry.run_log import RunLog

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_S = 3.0
"""For one answer. A server in a long prefill may not answer /v1/loads for longer: that is a missing value."""
HEALTH_TIMEOUT_S = 12.0
MAX_PAGE = 4 * 1024 * 1024
ABSENT_S = 60.0
"""A page that was not there (404) is looked for again after so long."""
SETTINGS_S = 120.0
"""Settings may be changed from elsewhere while the server runs."""
SETTINGS_RETRY_S = 10.0

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One HTTP answer. ``status`` is None when there was none, ``problem`` says why."""

    status: int | None = None
    body: bytes = b""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True for 200."""
        return self.status == 200


class ServerPoller:
    """One server. ``poll`` is one round; the results stand in ``answer``, ``figures`` and ``settings``."""

    def __init__(
        self,
        server: ServerConfig,
        link: HostLink,
        session: Callable[[], aiohttp.ClientSession],
        *,
        clock: Clock = wall,
        api_key: Callable[[], str | None] = lambda: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``session`` gives the shared client; ``api_key`` the key of a server that asks for one."""
        self._server = server
        self._link = link
        self._session = session
        self._clock = clock
        self._api_key = api_key
        self._timeout_s = timeout_s
        self.answer = HttpAnswer()
        self.figures: ServerFigures | None = None
        self.settings: EffectiveSettings | None = None
        self._maker = FigureMaker(server.name)
        self.reset()

    def reset(self) -> None:
        """Another process may be behind the port from now on: nothing that was known holds any more."""
        self.answer = HttpAnswer()
        self.figures = None
        self.settings = None
        self._maker.reset()
        self._absent: dict[str, float] = {}
        self._settings_due = 0.0

    def refresh_settings(self) -> None:
        """Reads /server_info again in the next round: settings were changed while it runs."""
        self._settings_due = 0.0

    async def poll(self, log: RunLog | None = None) -> None:
        """One round, bounded in time. What fails is in ``answer.message``; nothing is raised for it."""
        try:
            port = await asyncio.wait_for(self._link.forward(self._server.port), self._timeout_s)
        except (ConsoleError, TimeoutError) as problem:
            message = problem.what if isinstance(problem, ConsoleError) else "no connection to the host"
            self._missed(message)
            return
        base = f"http://127.0.0.1:{port}"
        if not self.answer.ready and not await self._ask_ready(base, log):
            return
        await self._ask_figures(base, log)

    def silent(self, message: str) -> None:
        """The host says that nothing listens: there is nobody to ask."""
        self.answer = HttpAnswer(asked=self._clock(), message=message)
        self.figures = None

    # Rounds -----------------------------------------------------------------------------------------

    async def _ask_ready(self, base: str, log: RunLog | None) -> bool:
        """True when the server says that it serves."""
        starting = log is not None and log.stage.name not in (StageName.LAUNCH, StageName.READY)
        page = Page(status=404)
        if starting:
            page = await self._get(base, "/health", timeout=HEALTH_TIMEOUT_S)
        if page.status in (401, 403, 404, 405):
            page = await self._get(base, "/v1/models")
            if page.status in (401, 403):
                # It answers and asks for a key: it serves, and /metrics is open also then.
                page = replace(page, status=200)
        now = self._clock()
        if page.status is None:
            self._missed(page.problem)
        elif page.ok:
            self.answer = HttpAnswer(asked=now, answered=now, ready=True)
        elif page.status == 503:
            self.answer = HttpAnswer(asked=now, answered=now, message="not serving yet (503)")
        else:
            self._missed(f"no answer of SGLang (HTTP {page.status})")
        return page.ok

    async def _ask_figures(self, base: str, log: RunLog | None) -> None:
        metrics_page, loads_page, _ = await asyncio.gather(
            self._present(base, "/metrics"),
            self._present(base, "/v1/loads?include=core,spec,queues"),
            self._ask_settings(base),
        )
        now = self._clock()
        metrics = loads = None
        metrics_problem, loads_problem = metrics_page.problem, loads_page.problem
        if metrics_page.ok and is_metrics(metrics_page.body):
            metrics = await _off_loop(read_metrics, metrics_page.body)
        elif metrics_page.status == 404 or metrics_page.ok:
            metrics_problem = NO_METRICS
        elif metrics_page.status is not None:
            metrics_problem = f"/metrics: HTTP {metrics_page.status}"
        if loads_page.ok:
            try:
                loads = read_loads(loads_page.body)
            except UsageError as problem:
                loads_problem = problem.what
        elif loads_page.status is not None:
            loads_problem = f"/v1/loads: HTTP {loads_page.status}"
        if metrics_page.status is None and loads_page.status is None and not await self._breathes(base):
            self._missed(loads_problem or metrics_problem)
            return
        self.figures = self._maker.make(
            Readings(
                at=now,
                metrics=metrics,
                metrics_problem=metrics_problem,
                loads=loads,
                loads_problem=loads_problem,
                log=log.decode(now) if log is not None else None,
                algorithm=self.settings.algorithm if self.settings is not None else None,
            )
        )
        if self._maker.restarted:
            self._settings_due = 0.0
        self.answer = HttpAnswer(asked=now, answered=now, ready=True, running=self.figures.running)

    async def _breathes(self, base: str) -> bool:
        return (await self._get(base, "/v1/models")).status is not None

    async def _ask_settings(self, base: str) -> None:
        if self._clock() < self._settings_due:
            return
        page = await self._get(base, "/server_info")
        if page.status == 404:
            page = await self._get(base, "/get_server_info")
        self._settings_due = self._clock() + SETTINGS_RETRY_S
        if page.ok:
            try:
                settings = read_effective_settings(page.body)
            except UsageError:
                return  # tried again; the settings of before stay
            if self.settings is not None and _speculation(settings) != _speculation(self.settings):
                self._maker.settings_changed()
            self.settings = settings
            self._settings_due = self._clock() + SETTINGS_S

    def _missed(self, message: str) -> None:
        """No answer in this round. One that went before keeps its time: silence is shown with its age."""
        now = self._clock()
        self.answer = replace(self.answer, asked=now, message=message, running=None)
        self.figures = None

    # HTTP -------------------------------------------------------------------------------------------

    async def _present(self, base: str, path: str) -> Page:
        """A page that not every server has: after a 404 it is left alone for a while."""
        absent = self._absent.get(path)
        if absent is not None and self._clock() - absent < ABSENT_S:
            return Page(status=404)
        page = await self._get(base, path)
        if page.status == 404:
            self._absent[path] = self._clock()
        return page

    async def _get(self, base: str, path: str, *, timeout: float | None = None) -> Page:
        import aiohttp

        timeout = timeout or self._timeout_s
        key = self._api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with asyncio.timeout(timeout):
                async with self._session().get(
                    base + path, headers=headers, allow_redirects=False
                ) as response:
                    body = await response.content.read(MAX_PAGE + 1)
                    while len(body) <= MAX_PAGE and (more := await response.content.read(MAX_PAGE)):
                        body += more
        except TimeoutError:
            return Page(problem=f"no answer within {timeout:g} s")
        except (aiohttp.ServerDisconnectedError, ConnectionError):
            return Page(problem="nothing listens on the port")
        except (aiohttp.ClientError, ValueError) as problem:
            return Page(problem=sanitise(f"no HTTP: {problem}", multiline=False, limit=200))
        if len(body) > MAX_PAGE:
            return Page(problem=f"{path} is longer than {MAX_PAGE} bytes")
        return Page(status=response.status, body=body)


def _speculation(settings: EffectiveSettings) -> tuple[object, ...]:
    return settings.algorithm, settings.window, settings.budget, settings.topk, settings.block_size


async def _off_loop(function: Callable[[bytes], R], body: bytes) -> R:
    """Runs a reader; a page of unusual size in a thread, since it would hold the screen up."""
    if len(body) > 512 * 1024:
        return await asyncio.to_thread(function, body)
    return function(body)
