"""The measured part of a window audit: allowed, polite, over the forward, in the action log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dflash_backend.audit.measure import measure
from dflash_backend.audit.measurement import Measurement, Progress
from dflash_backend.bench.client import open_session
from dflash_backend.bench.server import BenchServer
from dflash_backend.control.contract import Action
from dflash_backend.control.plane import ControlPlane
from dflash_backend.core.errors import ConsoleError, RefusedError, UsageError

AT_ONCE = 2
IDLE_WAIT_S = 5.0
"""So long a server that is in use gets to fall idle before the measurement is refused."""


async def measure_window(
    plane: ControlPlane, server: str, *, force: bool = False
) -> AsyncGenerator[Progress | Measurement, None]:
    """Measures a ready server; the last item is the measurement, which is also kept with the audit.

    Raises RefusedError (not allowed, not ready, others' requests run and no ``force``), UsageError (nothing
    to measure there) and what the connection and the server raise.
    """
    decision = plane.operator.decide(Action.BENCH, server)
    if not decision.allowed:
        raise RefusedError(decision.reason, where=server, unchanged="nothing was sent")
    entry = await plane.audits.get(server)
    rows = entry.audit.report.layers if entry.audit is not None else ()
    window = max((row.declared for row in rows if row.declared is not None), default=None)
    if window is None:
        raise UsageError(
            "the drafter declares no window, or it is not known: there is nothing to measure", where=server
        )
    config = plane.inventory.servers[server]
    now = plane.fleet.snapshot().server(server)
    settings = now.settings if now is not None else None
    limits = [n for n in (settings.context_length, settings.max_total_tokens) if n] if settings else []
    base = f"http://127.0.0.1:{await plane.pool.link(config.host).forward(config.port)}"
    details = {"what": "accept length against context length", "window": window}
    async with open_session() as session:
        await _polite(BenchServer(session, base), server, force=force)
        ident = plane.log.begin(Action.BENCH, server=server, host=config.host, details=details)
        ended: dict[str, object] = {"summary": "interrupted"}
        ok = False
        try:
            items = measure(
                session, base, window=window, context_limit=min(limits, default=None), at_once=AT_ONCE
            )
            async with aclosing(items) as told:
                async for item in told:
                    if isinstance(item, Measurement):
                        ok, ended["summary"] = True, item.text
                        plane.audits.measured(server, item)
                    yield item
        except ConsoleError as error:
            ended["summary"] = error.what
            raise
        finally:
            plane.log.end(ident, Action.BENCH, server=server, host=config.host, ok=ok, details=ended)


async def _polite(server: BenchServer, name: str, *, force: bool) -> None:
    """Refuses while others use the server: the measurement would take from them, and they would slow it."""
    if force:
        return
    deadline = time.monotonic() + IDLE_WAIT_S
    while (load := await server.loads()) is not None and load.running:
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.25)
    if load is None or load.running is None:
        raise RefusedError(
            "the server does not tell its load, so whether others use it is not known",
            where=name,
            unchanged="nothing was sent",
            next_step="--force measures all the same",
        )
    busy = (load.running or 0) + (load.waiting or 0)
    if busy:
        raise RefusedError(
            f"{busy} {'request' if busy == 1 else 'requests'} of others in progress",
            where=name,
            unchanged="nothing was sent",
            next_step="measure when it is idle, or --force to share it with them",
        )
