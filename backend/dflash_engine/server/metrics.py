"""/metrics with SGLang's names and labels, through the Prometheus client library."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from dflash_engine.api import EngineStats

_RANK = {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counters and histograms are fed by the engine loop, gauges are set at each scrape.

    ``realtime_tokens_total`` counts as tokens are made; ``generation_tokens_total`` when a request ends: the
    same difference as in SGLang.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._rank = {**_RANK, "model_name": model_name}
        self._plain = {"engine_type": "unified", "model_name": model_name}
        self._gauges: dict[str, Gauge] = {}
        rank, plain = list(self._rank), list(self._plain)

        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(f"sglang:{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"sglang:{name}", text, plain, buckets=buckets, registry=self.registry)
            return made.labels(**self._plain)

        realtime = counter("realtime_tokens", "Tokens as they are processed.", ["mode", *rank])
        self.decode_tokens = realtime.labels(mode="decode", **self._rank)
        self.prefill_tokens = realtime.labels(mode="prefill_compute", **self._rank)
        realtime.labels(mode="prefill_cache", **self._rank)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests.", plain).labels(
            **self._plain
        )
        self.generation_tokens = counter(
            "generation_tokens", "Generated tokens of ended requests.", plain
        ).labels(**self._plain)
        self.verify_calls = counter("spec_verify_calls", "Verify passes of ended requests.", plain).labels(
            **self._plain
        )
        self.requests = counter("num_requests", "Ended requests.", plain).labels(**self._plain)
        self.aborted = counter("num_aborted_requests", "Aborted requests.", plain).labels(**self._plain)
        cached = counter(
            "cached_tokens", "Prompt tokens found in a cache: none is kept.", ["cache_source", *plain]
        )
        cached.labels(cache_source="device", **self._plain)
        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", _LATENCY)
        self.e2e = histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self.itl = histogram("inter_token_latency_seconds", "Gap between outputs over its tokens.", _TOKEN)

    def exposition(
        self,
        stats: EngineStats,
        *,
        gen_throughput: float,
        accept_length: float | None,
        accept_rate: float | None,
        context_length: int,
        draft_tokens: int | None,
    ) -> bytes:
        """The page as text, format 0.0.4."""
        usage = stats.used_tokens / stats.capacity_tokens if stats.capacity_tokens else 0.0
        values: dict[str, float] = {
            "num_running_reqs": stats.running,
            "num_queue_reqs": stats.queued,
            "num_used_tokens": stats.used_tokens,
            "token_usage": round(usage, 4),
            "full_token_usage": usage,
            "max_total_num_tokens": stats.capacity_tokens,
            "kv_used_tokens": stats.used_tokens,
            "kv_available_tokens": stats.capacity_tokens - stats.used_tokens,
            "kv_evictable_tokens": 0,
            "num_retracted_reqs": 0,
            "gen_throughput": gen_throughput,
            "cache_hit_rate": 0.0,
            "utilization": usage,
            "context_len": context_length,
            "is_cuda_graph": 0,
        }
        if accept_length is not None and accept_rate is not None:
            values["spec_accept_length"] = accept_length
            values["spec_accept_rate"] = accept_rate
            values["spec_num_draft_tokens"] = draft_tokens or 0
        for name, value in values.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(
                    f"sglang:{name}", name.replace("_", " "), list(self._rank), registry=self.registry
                )
            self._gauges[name].labels(**self._rank).set(value)
        return generate_latest(self.registry)
