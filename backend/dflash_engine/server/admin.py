"""Health, facts, figures and live settings."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import asdict

from aiohttp import web

from dflash_engine.api import (
    Engine,
    EngineConfigError,
    EngineStats,
    RequestError,
    WindowMode,
)
from dflash_engine.server.generation import Generation
from dflash_engine.server.requests import InternalStateBody, SamplingBody, make_prompt, read_body
from dflash_engine.server.state import Phase, ServerContext, layer_windows

_GB = 1024.0**3
_LIVE = {
    "speculative_ddtree_budget",
    "speculative_ddtree_topk",
    "speculative_draft_window_mode",
    "speculative_draft_window_size",
}


class AdminRoutes:
    """Everything that serves no text."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        """What to register."""
        routes = [
            web.get("/health", self.health),
            web.get("/ready", self.health),
            web.get("/health_generate", self.health_generate),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
            web.get("/model_info", self.model_info),
            web.get("/get_model_info", self.model_info),
            web.get("/v1/loads", self.loads),
            web.get("/flush_cache", self.flush),
            web.post("/flush_cache", self.flush),
            web.post("/set_internal_state", self.set_internal_state),
            web.put("/set_internal_state", self.set_internal_state),
        ]
        if self._context.args.enable_metrics:
            routes.append(web.get("/metrics", self.metrics))
        return routes

    async def _stats(self) -> EngineStats:
        return await asyncio.wrap_future(self._context.loop.stats())

    async def health(self, request: web.Request) -> web.Response:
        """200 when ready, else 503."""
        return web.Response(status=200 if self._context.phase is Phase.READY else 503)

    async def health_generate(self, request: web.Request) -> web.Response:
        """200 when a token can be made."""
        if self._context.phase is not Phase.READY:
            return web.Response(status=503)
        await self.generate_one()
        return web.Response()

    async def generate_one(self, tokens: int = 1) -> None:
        """Runs one small request: the warm-up and the health probe."""
        context = self._context
        body = SamplingBody(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
        ids = context.tokenizer.encode("def main():\n")
        prompt = make_prompt(ids, body, context_length=context.context_length)
        generation = Generation(context.loop, context.tokenizer, prompt)
        await generation.submit()
        async for _ in generation.chunks():
            pass

    async def model_info(self, request: web.Request) -> web.Response:
        """What is served."""
        args = self._context.args
        return web.json_response(
            {
                "model_path": args.model_path,
                "tokenizer_path": args.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "qwen3",
                "architectures": [self._context.target.architecture],
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """All arguments, flat, and the state behind them; live changes show in the arguments."""
        stats = await self._stats()
        context = self._context
        args = asdict(context.args)
        if context.drafter is not None:
            args |= {
                "speculative_ddtree_budget": stats.budget,
                "speculative_ddtree_topk": stats.topk,
                "speculative_draft_window_mode": stats.window_mode,
                "speculative_draft_window_size": stats.window_size,
                "speculative_num_draft_tokens": context.block_size,
                "speculative_dflash_block_size": context.block_size,
            }
        figures = context.loop.figures
        internal = {
            **args,
            "last_gen_throughput": round(figures.gen_throughput, 2),
            "memory_usage": {
                "weight": round(stats.weight_bytes / _GB, 3),
                "kvcache": round((stats.target_kv_bytes + stats.draft_kv_bytes) / _GB, 3),
                "token_capacity": stats.capacity_tokens,
                "graph": 0.0,
            },
            "effective_max_running_requests_per_dp": context.args.max_running_requests,
        }
        if stats.verify_passes_total:
            internal["avg_spec_accept_length"] = 1.0 + stats.accepted_drafts_total / stats.verify_passes_total
        engine = {
            "name": "dflash reference engine",
            "layer_windows": layer_windows(stats.layer_windows),
            "draft_kv_bytes": stats.draft_kv_bytes,
            "draft_kv_bytes_uncompacted": stats.draft_kv_bytes_uncompacted,
            "target_kv_bytes": stats.target_kv_bytes,
            "startup_s": round(context.startup_s, 3),
        }
        return web.json_response(
            {
                **args,
                "device": "cpu",
                "dtype": "float32",
                "tp_size": 1,
                "pp_size": 1,
                "dp_size": 1,
                "page_size": 1,
                "status": context.phase,
                "max_total_num_tokens": stats.capacity_tokens,
                "max_req_input_len": context.context_length - 1,
                "internal_states": [internal],
                "dflash_engine": engine,
                "version": context.version,
            }
        )

    async def loads(self, request: web.Request) -> web.Response:
        """The cheap poll: running, queued, tokens, speculation."""
        stats = await self._stats()
        figures = self._context.loop.figures
        usage = stats.used_tokens / stats.capacity_tokens if stats.capacity_tokens else 0.0
        load: dict[str, object] = {
            "dp_rank": 0,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.queued,
            "num_used_tokens": stats.used_tokens,
            "num_total_tokens": stats.used_tokens,
            "max_total_num_tokens": stats.capacity_tokens,
            "max_running_requests": self._context.args.max_running_requests,
            "token_usage": round(usage, 4),
            "gen_throughput": round(figures.gen_throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": round(usage, 4),
            "memory": {
                "weight_gb": round(stats.weight_bytes / _GB, 3),
                "kv_cache_gb": round((stats.target_kv_bytes + stats.draft_kv_bytes) / _GB, 3),
                "graph_gb": 0.0,
                "token_capacity": stats.capacity_tokens,
            },
            "queues": {"waiting": stats.queued, "grammar": 0, "paused": 0, "retracted": 0},
        }
        if figures.accept_length is not None:
            load["speculative"] = {
                "accept_length": round(figures.accept_length, 4),
                "accept_rate": round(figures.accept_rate or 0.0, 4),
            }
        return web.json_response(
            {
                "timestamp": dt.datetime.now(dt.UTC).isoformat(),
                "version": self._context.version,
                "dp_rank_count": 1,
                "loads": [load],
            }
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        stats = await self._stats()
        figures = self._context.loop.figures
        draft_tokens = None
        if self._context.drafter is not None:
            draft_tokens = stats.budget + 1 if stats.budget else self._context.block_size
        page = self._context.metrics.exposition(
            stats,
            gen_throughput=figures.gen_throughput,
            accept_length=figures.accept_length,
            accept_rate=figures.accept_rate,
            context_length=self._context.context_length,
            draft_tokens=draft_tokens,
        )
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def flush(self, request: web.Request) -> web.Response:
        """400 while requests are in flight; otherwise nothing is cached and nothing is to be done."""
        if await asyncio.wrap_future(self._context.loop.call(lambda engine: engine.flush())):
            return web.Response(text="Cache flushed.\n")
        return web.Response(status=400, text="Flush cache failed: requests are running or queued.\n")

    async def set_internal_state(self, request: web.Request) -> web.Response:
        """Changes budget, topk and window without a restart: all of what is asked, or nothing."""
        asked = (await read_body(request, InternalStateBody)).server_args
        unknown = sorted(set(asked) - _LIVE)
        if unknown or not asked:
            what = f"cannot be changed live: {', '.join(unknown)}" if unknown else "server_args is empty"
            raise RequestError(f"{what}; live settings are {', '.join(sorted(_LIVE))}")
        for name, value in asked.items():
            right = isinstance(value, str) if name.endswith("mode") else isinstance(value, int)
            if not right or isinstance(value, bool):
                raise RequestError(f"{name}: {value!r} has the wrong type")
        mode = asked.get("speculative_draft_window_mode")
        if mode is not None and mode not in set(WindowMode):
            raise RequestError(
                f"speculative_draft_window_mode: {mode!r} is not one of {', '.join(WindowMode)}"
            )

        def change(engine: Engine) -> tuple[str, ...]:
            return engine.reconfigure(
                budget=asked.get("speculative_ddtree_budget"),
                topk=asked.get("speculative_ddtree_topk"),
                window_mode=WindowMode(mode) if mode is not None else None,
                window_size=asked.get("speculative_draft_window_size"),
            )

        try:
            notes = await asyncio.wrap_future(self._context.loop.call(change))
        except EngineConfigError as error:
            raise RequestError(f"nothing was changed: {error}") from error
        return web.json_response([{"updated": True, "server_args": asked, "notes": list(notes)}])
