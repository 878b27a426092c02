"""What a benchmark asks of a server besides the requests it measures: idle, cache, counters, settings."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from dflash_backend.core.errors import ConsoleError, UnreachableError
from dflash_backend.core.samples import EffectiveSettings
from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.loads import LoadsReading, read_loads
from dflash_backend.sglang.metrics import MetricsReading, read_metrics
from dflash_backend.sglang.server_info import ServerInfo, read_models, read_server_info

_QUICK_S = 15.0
_MAX_BODY = 32 * 1024 * 1024
_NO_SETTING = frozenset(
    # Says nothing about what is measured, or differs from start to start.
    "host port random_seed nccl_port dist_init_addr served_model_name api_key admin_api_key log_level "
    "log_level_http "
    "log_requests log_requests_level show_time_cost status version startup_time last_gen_throughput "
    "avg_spec_accept_length step_time_dict memory_usage dflash_engine decode_log_interval enable_metrics "
    "max_req_input_len ssl_keyfile_password watermark_key watermark_key_b".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of the server around a measurement. None: not told."""

    generated: float | None = None
    verify_calls: float | None = None
    retracted: float | None = None
    graph_passes: Mapping[str, float] | None = None


class BenchServer:
    """The server under test, by address. Every call is bounded in time."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self.base_url = base_url.rstrip("/")

    async def info(self) -> ServerInfo:
        """What it runs with. Raises UnreachableError without an answer, FormatError for another one."""
        status, body = await self._get("/server_info")
        if status == 404:
            status, body = await self._get("/get_server_info")
        if status != 200:
            raise UnreachableError(
                f"/server_info answered {status}: {_short(body)}",
                where=self.base_url,
                next_step="wait until the server is ready; with an API key give it to the benchmark",
            )
        return read_server_info(body)

    async def model(self) -> str:
        """The name that the OpenAI routes want."""
        status, body = await self._get("/v1/models")
        models = read_models(body) if status == 200 else ()
        return models[0].id if models else "default"

    async def loads(self) -> LoadsReading | None:
        """The load, or None where the server does not tell it."""
        try:
            status, body = await self._get("/v1/loads")
            return read_loads(body) if status == 200 else None
        except ConsoleError:
            return None

    async def counters(self) -> Counters:
        """Counters from /metrics; all None without --enable-metrics."""
        reading = await self._metrics()
        if reading is None:
            return Counters()
        return Counters(
            generated=reading.generation_tokens_total,
            verify_calls=reading.verify_calls_total,
            retracted=reading.retracted_total,
            graph_passes=reading.graph_passes,
        )

    async def _metrics(self) -> MetricsReading | None:
        try:
            status, body = await self._get("/metrics")
        except UnreachableError:
            return None
        reading = read_metrics(body)
        return reading if status == 200 and reading.families else None

    async def wait_idle(self, timeout: float) -> str | None:
        """Waits until nothing runs or queues; says what was in the way when it never came to that."""
        end = asyncio.get_running_loop().time() + timeout
        while True:
            load = await self.loads()
            if load is None or load.running is None:
                return "the server does not tell its load: other requests would not be seen"
            busy = (load.running or 0) + (load.waiting or 0)
            if not busy:
                return None
            if asyncio.get_running_loop().time() >= end:
                return f"{busy} other request(s) were running at the start"
            await asyncio.sleep(0.2)

    async def flush_cache(self, timeout: float = 10.0) -> str | None:
        """Empties the prefix cache; says why when it was refused."""
        end = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                async with (
                    asyncio.timeout(_QUICK_S),
                    self._session.post(self.base_url + "/flush_cache") as response,
                ):
                    status, body = response.status, await response.content.read(2000)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                return f"the prefix cache was not flushed: {type(error).__name__}"
            if status == 200:
                return None
            # 400 while a request is in flight: one that was just cancelled may still be on its way out.
            if status != 400 or asyncio.get_running_loop().time() >= end:
                return f"the prefix cache was not flushed: HTTP {status} {_short(body)}".rstrip()
            await asyncio.sleep(0.2)

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(_QUICK_S), self._session.get(self.base_url + path) as response:
                data = bytearray()
                async for piece in response.content.iter_any():
                    data += piece
                    if len(data) > _MAX_BODY:
                        raise UnreachableError(f"{path} answers without end", where=self.base_url)
                return response.status, bytes(data)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(
                f"no answer to {path}: {_short(reason)}",
                where=self.base_url,
                next_step="check that the server is up: 'status' shows its state",
            ) from None


def _short(text: str | bytes) -> str:
    return redact(sanitise(text, multiline=False, limit=200))


def settings_digest(settings: EffectiveSettings) -> str:
    """Names a server's configuration: same digest, same settings as far as they decide a result."""
    kept = {k: v for k, v in settings.raw.items() if k not in _NO_SETTING}
    text = json.dumps([settings.version, kept], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
