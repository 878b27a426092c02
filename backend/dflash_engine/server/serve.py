"""Start-up in SGLang's stages, serving, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata

from aiohttp import web

from dflash_engine.api import Engine, EngineConfigError, StartupStage
from dflash_engine.server import log
from dflash_engine.server.admin import AdminRoutes
from dflash_engine.server.app import build_app
from dflash_engine.server.args import ServerArgs, parse_args
from dflash_engine.server.loop import EngineLoop
from dflash_engine.server.metrics import Metrics
from dflash_engine.server.state import Phase, ServerContext

DRAIN_S = 5.0
"""Seconds that requests in flight get after SIGTERM."""


def version() -> str:
    """What ``/server_info`` calls its version: ours, and plainly not a release of SGLang."""
    try:
        own = metadata.version("dflash-sglang-console")
    except metadata.PackageNotFoundError:
        own = "0"
    return f"dflash-engine-{own}"


def main(argv: Sequence[str]) -> int:
    """``python -m dflash_engine serve``: 0 after an orderly end, 1 when start-up or the engine failed."""
    args = parse_args(argv)
    log.setup()
    log.logger.info(log.server_args_line(args))
    try:
        engine, seconds = _load(args)
    except EngineConfigError as error:
        log.logger.error("ERROR: %s", error)
        return 1
    except MemoryError:
        log.logger.error("ERROR: out of memory while loading; lower --context-length or --max-total-tokens")
        return 1
    return asyncio.run(_serve(args, engine, seconds))


def _load(args: ServerArgs) -> tuple[Engine, float]:
    # Imported here, so that a wrong command line answers before numpy is loaded.
    from dflash_engine.engine import load_engine

    began = time.monotonic()
    log.logger.info("Load weight begin. avail mem=%.2f GB", log.available_gb())

    def told(stage: StartupStage) -> None:
        for line in log.stage_lines(stage):
            log.logger.info(line)

    engine = load_engine(args.engine_config(), on_stage=told)
    stats = engine.stats
    if engine.drafter is not None:
        for line in log.draft_runner_lines(
            algorithm=stats.algorithm,
            model=engine.drafter.architecture,
            block_size=engine.block_size,
            window_flag=args.speculative_draft_window_size,
            compact=args.speculative_draft_compact_cache,
            mask_token_id=engine.mask_token_id,
            layers=stats.layer_windows,
        ):
            log.logger.info(line)
    log.logger.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_running_requests=%d, context_len=%d",
        stats.capacity_tokens,
        args.chunked_prefill_size,
        args.max_running_requests,
        args.context_length,
    )
    return engine, time.monotonic() - began


async def _serve(args: ServerArgs, engine: Engine, load_s: float) -> int:
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    failed: list[BaseException] = []

    def crashed(error: BaseException) -> None:
        failed.append(error)
        log.logger.error("ERROR: the engine stopped: %r", error, exc_info=error)
        with contextlib.suppress(RuntimeError):
            running.call_soon_threadsafe(stop.set)

    metrics = Metrics(args.served_model_name)
    loop = EngineLoop(engine, metrics, log_interval=args.decode_log_interval, on_crash=crashed)
    context = ServerContext(
        args=args,
        loop=loop,
        metrics=metrics,
        tokenizer=engine.tokenizer,
        target=engine.target,
        drafter=engine.drafter,
        block_size=engine.block_size,
        context_length=engine.config.context_length,
        version=version(),
        startup_s=load_s,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        build_app(context), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
    )
    await runner.setup()
    site = web.TCPSite(runner, args.host, args.port)
    try:
        await site.start()
    except OSError as error:
        log.logger.error("ERROR: cannot listen on %s:%d: %s", args.host, args.port, error.strerror or error)
        await runner.cleanup()
        return 1
    address = runner.addresses[0]
    loop.start()
    log.logger.info("INFO:     Application startup complete.")
    log.logger.info(
        "INFO:     Uvicorn running on http://%s:%d (Press CTRL+C to quit)", address[0], address[1]
    )
    if not args.skip_server_warmup:
        await AdminRoutes(context).generate_one(tokens=8)
    context.phase = Phase.READY
    log.logger.info("The server is fired up and ready to roll!")
    await stop.wait()
    context.phase = Phase.FAILED if failed else Phase.STOPPING
    if not failed:
        log.logger.info("SIGTERM received. Draining requests and shutting down...")
        await _drain(loop)
    await runner.cleanup()
    loop.close()
    return 1 if failed else 0


async def _drain(loop: EngineLoop) -> None:
    """Waits for the requests in flight, DRAIN_S at most, then ends them."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        stats = await asyncio.wrap_future(loop.stats())
        if not stats.running and not stats.queued:
            return
        await asyncio.sleep(0.05)
    left = await asyncio.wrap_future(loop.call(lambda engine: engine.abort_all()))
    log.logger.info("Gracefully exiting... Remaining number of requests %d.", left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
