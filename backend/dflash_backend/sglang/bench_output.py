"""Reader of what SGLang's own serving benchmark prints and appends to its JSONL file.

Its figures keep its definitions: the duration includes a request to /server_info, the peak counts chunks per
second (and falls below the average under speculation), and failed requests are left out of every mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_backend.core.text import sanitise
from dflash_backend.sglang.decode import clean_json, mapping_or_empty, number


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run. ``figures`` has snake-case names with their unit (``median_ttft_ms``); None: not told."""

    backend: str | None = None
    dataset: str | None = None
    max_concurrency: int | None = None
    completed: int | None = None
    duration_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    output_tok_s: float | None = None
    request_rate: str | None = None
    accept_length: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    server: Mapping[str, object] = field(default_factory=dict)
    """Settings of the server from the JSONL form, secrets removed."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should not be read out of this run."""
        peak = self.figures.get("peak_output_tok_s")
        found = []
        if peak is not None and self.output_tok_s is not None and peak < self.output_tok_s:
            found.append("peak below average: the peak counts chunks, not tokens")
        if self.output_tok_s is not None and self.accept_length is None:
            found.append("no accept length: without speculation, or not told")
        return tuple(found)


HEAD = "Serving Benchmark Result"
_ROW = re.compile(r"^(?P<label>[A-Z][^:]{1,60}):\s{2,}(?P<value>\S.*?)\s*$")
_NAMES = {
    "Successful requests": "completed",
    "Benchmark duration (s)": "duration_s",
    "Total input tokens": "input_tokens",
    "Total generated tokens": "output_tokens",
    "Output token throughput (tok/s)": "output_tok_s",
    "Max request concurrency": "max_concurrency",
    "Accept length": "accept_length",
    "Peak output token throughput (tok/s)": "peak_output_tok_s",
}
_WHOLE = ("completed", "input_tokens", "output_tokens", "max_concurrency")


def read_bench_text(text: str) -> tuple[BenchResult, ...]:
    """Every result block of the benchmark's output. Never raises."""
    results: list[BenchResult] = []
    block: dict[str, str] | None = None
    for line in sanitise(text).split("\n"):
        if HEAD in line:
            if block:
                results.append(_from_block(block))
            block = {}
        elif block is not None and (found := _ROW.match(line)):
            block[found["label"]] = found["value"]
    if block:
        results.append(_from_block(block))
    return tuple(results)


def _from_block(block: Mapping[str, str]) -> BenchResult:
    known: dict[str, float] = {}
    figures: dict[str, float] = {}
    for label, raw in block.items():
        value = _float(raw)
        if value is None:
            continue
        name = _NAMES.get(label)
        if name in BenchResult.__dataclass_fields__:
            known[str(name)] = value
        else:
            figures[name or _snake(label)] = value
    return _result(
        known,
        backend=block.get("Backend"),
        request_rate=block.get("Traffic request rate"),
        figures=figures,
    )


def _snake(label: str) -> str:
    words = re.sub(r"tok/s|token/s", "tok_s", label)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _float(raw: str) -> float | None:
    try:
        return number(float(raw))
    except ValueError:
        return None


def _result(
    known: Mapping[str, float],
    *,
    backend: str | None = None,
    dataset: str | None = None,
    request_rate: str | None = None,
    figures: Mapping[str, float],
    server: Mapping[str, object] | None = None,
) -> BenchResult:
    whole = {name: int(known[name]) for name in _WHOLE if name in known}
    accept = known.get("accept_length")
    return BenchResult(
        backend=backend,
        dataset=dataset,
        request_rate=request_rate,
        completed=whole.get("completed"),
        input_tokens=whole.get("input_tokens"),
        output_tokens=whole.get("output_tokens"),
        max_concurrency=whole.get("max_concurrency"),
        duration_s=known.get("duration_s"),
        output_tok_s=known.get("output_tok_s"),
        accept_length=accept if accept is not None and accept >= 1.0 else None,
        figures=figures,
        server=server or {},
    )


_JSON_NAMES = {
    "completed": "completed",
    "duration": "duration_s",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "output_throughput": "output_tok_s",
    "max_concurrency": "max_concurrency",
    "accept_length": "accept_length",
    "max_output_tokens_per_s": "peak_output_tok_s",
}


def is_bench_record(value: object) -> bool:
    """True for one decoded line of the benchmark's JSONL file."""
    return isinstance(value, Mapping) and {"completed", "duration", "output_throughput"} <= set(value)


def read_bench_jsonl(text: str) -> tuple[tuple[BenchResult, ...], int]:
    """Every run of a JSONL file, and how many lines were none. Never raises on a broken line."""
    results: list[BenchResult] = []
    skipped = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if is_bench_record(value):
            results.append(read_bench_record(mapping_or_empty(value)))
        else:
            skipped += 1
    return tuple(results), skipped


def read_bench_record(record: Mapping[str, object]) -> BenchResult:
    """One decoded line. Raises FormatError when its settings are nested too deeply."""
    known: dict[str, float] = {}
    figures: dict[str, float] = {}
    for key, item in record.items():
        value = number(item)
        if value is None:
            continue
        name = _JSON_NAMES.get(key, key)
        if name in BenchResult.__dataclass_fields__:
            known[name] = value
        else:
            figures[sanitise(name, multiline=False, limit=80)] = value
    rate = record.get("request_rate")
    server = clean_json(mapping_or_empty(record.get("server_info")), "the benchmark record")
    backend, dataset = record.get("backend"), record.get("dataset_name")
    return _result(
        known,
        backend=sanitise(backend, multiline=False, limit=60) if isinstance(backend, str) else None,
        dataset=sanitise(dataset, multiline=False, limit=60) if isinstance(dataset, str) else None,
        request_rate="inf"
        if rate == float("inf")
        else None
        if rate is None
        else sanitise(str(rate), limit=40),
        figures=figures,
        server=mapping_or_empty(server),
    )
