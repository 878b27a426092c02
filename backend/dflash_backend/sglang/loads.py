"""Readers of /v1/loads and of its predecessor /get_load (gone from 0.5.21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dflash_backend.sglang.decode import (
    FormatError,
    JsonInput,
    decode_json,
    integer,
    items,
    mapping_or_empty,
    number,
    text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """One replica. ``gen_throughput`` and ``accept_length`` keep their last value while it is idle."""

    dp_rank: int | None = None
    running: int | None = None
    waiting: int | None = None
    used_tokens: int | None = None
    max_total_tokens: int | None = None
    token_usage: float | None = None
    gen_throughput: float | None = None
    cache_hit_rate: float | None = None
    utilization: float | None = None
    max_running_requests: int | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    weights_gb: float | None = None
    kv_cache_gb: float | None = None
    graphs_gb: float | None = None
    retracted: int | None = None
    paused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsReading:
    """The load of a server: its replicas, and their sums or means where every replica tells."""

    version: str | None = None
    ranks: tuple[RankLoad, ...] = ()

    @property
    def running(self) -> int | None:
        """Requests that run, over all replicas."""
        return _sum_whole(r.running for r in self.ranks)

    @property
    def waiting(self) -> int | None:
        """Requests that wait, over all replicas."""
        return _sum_whole(r.waiting for r in self.ranks)

    @property
    def used_tokens(self) -> int | None:
        """Tokens held in the KV pools, over all replicas."""
        return _sum_whole(r.used_tokens for r in self.ranks)

    @property
    def max_total_tokens(self) -> int | None:
        """Tokens that the KV pools can hold, over all replicas."""
        return _sum_whole(r.max_total_tokens for r in self.ranks)

    @property
    def token_usage(self) -> float | None:
        """Share 0..1, mean over replicas."""
        return _mean(r.token_usage for r in self.ranks)

    @property
    def gen_throughput(self) -> float | None:
        """Tokens per second of the last decode-log interval, over all replicas; stale while idle."""
        known = [r.gen_throughput for r in self.ranks if r.gen_throughput is not None]
        return sum(known) if known else None

    @property
    def accept_length(self) -> float | None:
        """Mean over the replicas that have verified anything."""
        return _mean(r.accept_length for r in self.ranks)

    @property
    def cache_hit_rate(self) -> float | None:
        """Share 0..1, mean over replicas."""
        return _mean(r.cache_hit_rate for r in self.ranks)


def _sum_whole(values: Iterable[int | None]) -> int | None:
    known = list(values)
    whole = [v for v in known if v is not None]
    return sum(whole) if whole and len(whole) == len(known) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def read_loads(data: JsonInput) -> LoadsReading:
    """Reads either form. Raises FormatError when it is neither (``{"detail": "Not Found"}`` included)."""
    decoded = decode_json(data, "the load report")
    if isinstance(decoded, list | tuple):
        ranks = decoded
        version = None
    else:
        top = mapping_or_empty(decoded)
        if "loads" not in top:
            detail = text(top.get("detail"), 200)
            raise FormatError(
                f"no load report: the server answered {detail!r}"
                if detail
                else "no load report in this answer",
                next_step="/get_load is gone from SGLang 0.5.21 on; /v1/loads exists from 0.5.11 on",
            )
        ranks = items(top.get("loads"))
        version = text(top.get("version"), 60)
    return LoadsReading(version=version, ranks=tuple(_rank(r) for r in ranks if isinstance(r, Mapping)))


def _rank(load: Mapping[str, object]) -> RankLoad:
    memory = mapping_or_empty(load.get("memory"))
    speculative = mapping_or_empty(load.get("speculative"))
    queues = mapping_or_empty(load.get("queues"))
    waiting = integer(load.get("num_waiting_reqs"))
    running = integer(load.get("num_running_reqs"))
    total = integer(load.get("num_reqs"))
    if running is None and total is not None and waiting is not None:
        running = max(0, total - waiting)  # /get_load tells both together
    accept = number(speculative.get("accept_length"))
    accept = accept if accept is not None and accept >= 1.0 else None
    used = integer(load.get("num_used_tokens"))
    return RankLoad(
        dp_rank=integer(load.get("dp_rank")),
        running=running,
        waiting=waiting,
        used_tokens=integer(load.get("num_tokens")) if used is None else used,
        max_total_tokens=integer(load.get("max_total_num_tokens")),
        token_usage=number(load.get("token_usage")),
        gen_throughput=number(load.get("gen_throughput")),
        cache_hit_rate=number(load.get("cache_hit_rate")),
        utilization=number(load.get("utilization")),
        max_running_requests=integer(load.get("max_running_requests")),
        accept_length=accept,
        accept_rate=number(speculative.get("accept_rate")) if accept is not None else None,
        weights_gb=number(memory.get("weight_gb")),
        kv_cache_gb=number(memory.get("kv_cache_gb")),
        graphs_gb=number(memory.get("graph_gb")),
        retracted=integer(queues.get("retracted")),
        paused=integer(queues.get("paused")),
    )
