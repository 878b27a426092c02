"""Reader of SGLang's /metrics page.

A page is 50 to 90 kB, of which some forty lines matter here: they are picked by name in the raw bytes first,
so that only those go through the Prometheus parser.

How samples become one figure (see ``_rank_rule``): tensor, pipeline and expert ranks repeat a value and are
never added; replicas (``dp_rank``) and all other labels are. ``engine_type="draft"`` is the drafter's own
engine and is left out. NaN and infinities are missing values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

How = Literal["sum", "mean", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """One scrape. Missing is None. Gauges keep their last value when a server goes idle.

    Shares are 0..1; ``*_gb`` as SGLang counts them (GiB); counters count since the server's start and fall
    only when it restarts.
    """

    families: int = 0
    """How many different sample names of the page were used; 0: nothing of SGLang on it."""
    model: str | None = None
    running: int | None = None
    queued: int | None = None
    used_tokens: int | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    token_usage: float | None = None
    """Mean over replicas."""
    token_usage_max: float | None = None
    """The fullest replica and pool (full, sliding-window, mamba)."""
    gen_throughput: float | None = None
    cache_hit_rate: float | None = None
    utilization: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    cap_length: float | None = None
    block_accept_length: float | None = None
    draft_tokens: int | None = None
    cuda_graph: bool | None = None
    weights_gb: float | None = None
    kv_cache_gb: float | None = None
    graphs_gb: float | None = None
    retracted_now: int | None = None
    """Requests that wait after a retraction (a gauge)."""
    decode_tokens_total: float | None = None
    prefill_tokens_total: float | None = None
    cached_prefill_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    """Moves only when a request completes: for a live rate use ``decode_tokens_total``."""
    prompt_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    verify_calls_total: float | None = None
    retracted_total: float | None = None
    aborted_total: float | None = None
    requests_total: float | None = None
    graph_passes: Mapping[str, float] = field(default_factory=dict)
    """Forward passes by mode, such as ``decode_cuda_graph`` and ``decode_none``."""
    ttft_seconds_sum: float | None = None
    ttft_count: float | None = None
    e2e_seconds_sum: float | None = None
    e2e_count: float | None = None
    skipped_lines: int = 0
    """Lines of wanted names that could not be parsed."""


_FIELDS: dict[str, tuple[str, How]] = {
    # name without its prefix -> (field, how replicas and other labels become one)
    "num_running_reqs": ("running", "sum"),
    "num_queue_reqs": ("queued", "sum"),
    "num_used_tokens": ("used_tokens", "sum"),
    "max_total_num_tokens": ("max_total_tokens", "sum"),
    "max_running_requests": ("max_running_requests", "sum"),
    "token_usage": ("token_usage", "mean"),
    "gen_throughput": ("gen_throughput", "sum"),
    "cache_hit_rate": ("cache_hit_rate", "mean"),
    "utilization": ("utilization", "mean"),
    "spec_accept_length": ("accept_length", "mean"),
    "spec_accept_rate": ("accept_rate", "mean"),
    "spec_cap_length": ("cap_length", "mean"),
    "spec_block_accept_length": ("block_accept_length", "mean"),
    "spec_num_draft_tokens": ("draft_tokens", "first"),
    "is_cuda_graph": ("cuda_graph", "first"),
    "weight_memory_usage_gb": ("weights_gb", "first"),
    "kv_cache_memory_usage_gb": ("kv_cache_gb", "first"),
    "graph_memory_usage_gb": ("graphs_gb", "sum"),
    "num_retracted_reqs": ("retracted_now", "sum"),
    "generation_tokens_total": ("generation_tokens_total", "sum"),
    "prompt_tokens_total": ("prompt_tokens_total", "sum"),
    "cached_tokens_total": ("cached_tokens_total", "sum"),
    "spec_verify_calls_total": ("verify_calls_total", "sum"),
    "num_retracted_requests_total": ("retracted_total", "sum"),
    "num_aborted_requests_total": ("aborted_total", "sum"),
    "num_requests_total": ("requests_total", "sum"),
    "time_to_first_token_seconds_sum": ("ttft_seconds_sum", "sum"),
    "time_to_first_token_seconds_count": ("ttft_count", "sum"),
    "e2e_request_latency_seconds_sum": ("e2e_seconds_sum", "sum"),
    "e2e_request_latency_seconds_count": ("e2e_count", "sum"),
    # Names of 2024.
    "queue_req": ("queued", "sum"),
    "running_req": ("running", "sum"),
    "num_requests_running": ("running", "sum"),
    "num_requests_waiting": ("queued", "sum"),
    "num_running_sys": ("running", "sum"),
}
_MODES = {
    "decode": "decode_tokens_total",
    "prefill_compute": "prefill_tokens_total",
    "prefill_cache": "cached_prefill_tokens_total",
}
_POOLS = frozenset({"token_usage", "full_token_usage", "swa_token_usage", "mamba_usage"})
_SPECIAL = frozenset({"realtime_tokens_total", "cuda_graph_passes_total", *_POOLS})
_WHOLE = frozenset(
    {
        "running", "queued", "used_tokens", "max_total_tokens", "max_running_requests", "draft_tokens",
        "retracted_now",
    }
)  # fmt: skip
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid")
_WANTED = re.compile(
    (
        r"^[ \t]*sglang[:_](?:"
        + "|".join(sorted({*_FIELDS, *_SPECIAL}, key=len, reverse=True))
        + r")[ \t]*[{ \t][^\n]*"
    ).encode(),
    re.MULTILINE,
)
MAX_LINES = 20_000
"""Wanted lines read of one page: a bound against a hostile one."""


def read_metrics(page: bytes | str) -> MetricsReading:
    """Everything this console uses of a /metrics page. Never raises: a broken line is counted and skipped."""
    raw = page.encode("utf-8", "replace") if isinstance(page, str) else bytes(page)
    lines = _WANTED.findall(raw)[:MAX_LINES]
    samples, skipped = _parse([line.decode("utf-8", "replace").strip() for line in lines])
    return _reading(samples, skipped)


def is_metrics(page: bytes | str) -> bool:
    """True when the text has at least one sample line of SGLang's."""
    raw = page.encode("utf-8", "replace") if isinstance(page, str) else page
    return (
        re.search(rb"^[ \t]*sglang[:_][a-z0-9_:]+(?:\{[^\n]*\})?[ \t]+[-+0-9.naNIif]", raw, re.MULTILINE)
        is not None
    )


def _parse(lines: Sequence[str]) -> tuple[list[Sample], int]:
    from prometheus_client.parser import text_string_to_metric_families

    def parsed(part: Iterable[str]) -> list[Sample]:
        text = "\n".join(part) + "\n"
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    try:
        return parsed(lines), 0
    except Exception:
        # The parser raises anything on broken input: one broken line must not cost the page.
        good: list[Sample] = []
        skipped = 0
        for line in lines:
            try:
                good += parsed([line])
            except Exception:
                skipped += 1
        return good, skipped


def _plain(name: str) -> str:
    return name[7:] if name.startswith(("sglang:", "sglang_")) else name


def _rank_rule(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for each set of labels that remain without the rank labels: that of the lowest ranks."""
    chosen: dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], Sample]] = {}
    for sample in samples:
        labels = sample.labels
        if labels.get("engine_type") == "draft" or not math.isfinite(sample.value):
            continue
        key = tuple(sorted((k, v) for k, v in labels.items() if k not in _RANKS))
        order = tuple(_rank(labels.get(rank)) for rank in _RANKS)
        if key not in chosen or order < chosen[key][0]:
            chosen[key] = (order, sample)
    return [sample for _, sample in chosen.values()]


def _rank(value: str | None) -> int:
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,9}", value) else 0


def _reading(samples: Iterable[Sample], skipped: int) -> MetricsReading:
    by_name: dict[str, list[Sample]] = {}
    model: str | None = None
    for sample in samples:
        by_name.setdefault(_plain(sample.name), []).append(sample)
        if model is None:
            model = sample.labels.get("model_name") or sample.labels.get("name") or None
    values: dict[str, object] = {}
    usages: list[float] = []
    for name, group in by_name.items():
        kept = _rank_rule(group)
        if not kept:
            continue
        if name in _POOLS:
            usages += [sample.value for sample in kept]
        if name == "realtime_tokens_total":
            for mode, total in _by_mode(kept).items():
                if mode in _MODES:
                    values[_MODES[mode]] = total
        elif name == "cuda_graph_passes_total":
            values["graph_passes"] = _by_mode(kept)
        elif name in _FIELDS:
            field_name, how = _FIELDS[name]
            if field_name not in values:
                values[field_name] = _combine(field_name, how, [sample.value for sample in kept])
    if usages:
        values["token_usage_max"] = max(usages)
    _settle(values)
    return MetricsReading(
        families=len(by_name),
        model=_clean_label(model),
        skipped_lines=skipped,
        **values,  # type: ignore[arg-type]
    )


def _by_mode(samples: Iterable[Sample]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for sample in samples:
        mode = _clean_label(sample.labels.get("mode")) or ""
        totals[mode] = totals.get(mode, 0.0) + sample.value
    return totals


def _combine(field_name: str, how: How, numbers: Sequence[float]) -> object:
    if field_name == "accept_length":
        # A step commits at least the bonus token: less means that nothing was verified on that replica.
        numbers = [n for n in numbers if n >= 1.0]
        if not numbers:
            return None
    value = numbers[0] if how == "first" else sum(numbers)
    if how == "mean":
        value /= len(numbers)
    if field_name == "cuda_graph":
        return bool(value)
    if not math.isfinite(value):
        return None
    return int(value) if field_name in _WHOLE and abs(value) < 2**63 else value


def _settle(values: dict[str, object]) -> None:
    if values.get("accept_length") is None:
        # Without a verified step the other figures are the gauges' initial nought, not a measurement.
        for name in ("accept_rate", "cap_length", "block_accept_length"):
            values.pop(name, None)
        if not values.get("draft_tokens"):
            values.pop("draft_tokens", None)
    rate = values.get("cache_hit_rate")
    if isinstance(rate, float) and rate > 1.0:
        values["cache_hit_rate"] = rate / 100.0  # percent in 2024


def _clean_label(value: str | None) -> str | None:
    from dflash_backend.core.text import sanitise

    return sanitise(value, multiline=False, limit=200) if value else None
