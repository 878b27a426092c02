"""One reader per kind of captured file: summary, rows and notes for ``inspect``."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dflash_backend.core.text import REDACTED, is_secret_name, redact, sanitise
from dflash_backend.sglang.bench_output import HEAD as BENCH_HEAD
from dflash_backend.sglang.bench_output import (
    is_bench_record,
    read_bench_jsonl,
    read_bench_record,
    read_bench_text,
)
from dflash_backend.sglang.decode import FormatError, clean_json, decode_json, items, mapping_or_empty, text
from dflash_backend.sglang.draft_config import read_draft_config
from dflash_backend.sglang.loads import read_loads
from dflash_backend.sglang.meta_info import read_meta_info, read_usage
from dflash_backend.sglang.metrics import read_metrics
from dflash_backend.sglang.nvidia_smi import SmiReport, read_nvidia_smi
from dflash_backend.sglang.server_info import read_model_info, read_models, read_server_info


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader made of a file; values may still be dataclasses (see ``plain``)."""

    summary: object
    rows: Sequence[object] = ()
    notes: Sequence[str] = ()


_NAMED = re.compile(r"(?P<name>[A-Za-z][\w-]*)['\"]?\s*[:=]\s*(?P<value>\S)")


def guarded(line: str) -> str:
    """A line of unknown kind without secrets: what follows a secret's name is cut, whatever its form."""
    line = redact(line)
    for found in _NAMED.finditer(line):
        if is_secret_name(found["name"]) and not found["value"].isdigit():
            return line[: found.start("value")] + REDACTED
    return line


def plain(value: object) -> object:
    """Dataclasses, enums, tuples and odd floats as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _metrics(data: bytes) -> Found:
    reading = read_metrics(data)
    notes = []
    if not reading.families:
        notes.append("nothing of SGLang on this page: is the server started with --enable-metrics?")
    if reading.running == 0:
        notes.append("idle: throughput and acceptance gauges keep their last value")
    if reading.skipped_lines:
        notes.append(f"{reading.skipped_lines} line(s) could not be read")
    return Found(reading if reading.families else {}, notes=notes)


def _server_info(data: bytes) -> Found:
    info = read_server_info(data)
    settings = plain(info.settings)
    assert isinstance(settings, dict)
    raw = mapping_or_empty(settings.pop("raw", None))
    secrets = sorted(key for key, item in raw.items() if item == REDACTED)
    notes = [f"secrets removed: {', '.join(secrets)}"] if secrets else []
    summary = {
        "settings": settings,
        "role": info.role,
        "workers": info.workers,
        "states": info.states,
        "launch_command": info.launch_command,
        "status": info.status,
        "arguments": len(raw),
    }
    return Found(summary, [{"name": key, "value": raw[key]} for key in sorted(raw)], notes)


def _loads(data: bytes) -> Found:
    reading = read_loads(data)
    totals = (
        "running", "waiting", "used_tokens", "max_total_tokens", "token_usage", "gen_throughput",
        "accept_length", "cache_hit_rate",
    )  # fmt: skip
    summary = {"version": reading.version, **{name: getattr(reading, name) for name in totals}}
    notes = ["idle: throughput and acceptance keep their last value"] if reading.running == 0 else []
    return Found(summary, reading.ranks, notes)


def _generate(data: bytes) -> Found:
    shown = data.decode("utf-8", "replace")
    if shown.lstrip().startswith("data:"):
        return _stream(shown)
    decoded = decode_json(shown, "the answer")
    answers = [mapping_or_empty(a) for a in (items(decoded) or (decoded,))]
    rows = [
        read_meta_info(a["meta_info"]) if "meta_info" in a else read_usage(a.get("usage")) for a in answers
    ]
    completion = [r.completion_tokens for r in rows if r.completion_tokens is not None]
    verify = [r.spec.verify_ct for r in rows if r.spec is not None]
    drafted = [r.spec.completion_tokens for r in rows if r.spec is not None]
    return Found(
        {
            "requests": len(rows),
            "completion_tokens": sum(completion) if completion else None,
            "accept_length": sum(drafted) / sum(verify) if verify else None,
        },
        rows,
    )


def _stream(shown: str) -> Found:
    chunks = broken = 0
    last: Mapping[str, object] = {}
    usage: Mapping[str, object] = {}
    done = False
    for line in shown.splitlines():
        if not line.startswith("data:"):
            continue
        payload = line[5:].strip()
        if payload == "[DONE]":
            done = True
            continue
        try:
            event = mapping_or_empty(json.loads(payload))
        except (ValueError, RecursionError):
            broken += 1
            continue
        chunks += 1
        last = event if "meta_info" in event else last
        usage = mapping_or_empty(event.get("usage")) or usage
    meta = read_meta_info(last.get("meta_info")) if last else read_usage(usage)
    form = "native" if last else "openai"
    notes = ["a chunk is not a token: tokens are counted by the server"]
    if broken:
        notes.append(f"{broken} event(s) could not be read")
    return Found({"form": form, "chunks": chunks, "done": done, "request": meta}, [meta], notes)


def _bench(data: bytes) -> Found:
    shown = data.decode("utf-8", "replace")
    skipped = 0
    if BENCH_HEAD in shown:
        results = read_bench_text(shown)
    else:
        try:
            record = json.loads(shown)
        except (ValueError, RecursionError):
            record = None
        if is_bench_record(record):
            results = (read_bench_record(mapping_or_empty(record)),)
        else:
            results, skipped = read_bench_jsonl(shown)
    notes = sorted({warning for result in results for warning in result.warnings})
    if skipped:
        notes.append(f"{skipped} line(s) are no benchmark records")
    rows = [{**mapping_or_empty(plain(result)), "server": len(result.server) or None} for result in results]
    return Found({"runs": len(results)} if results else {}, rows, notes)


def _nvidia_smi(data: bytes) -> Found:
    report = read_nvidia_smi(data)
    counted = {
        "gpus": len(report.gpus),
        "processes": len(report.processes),
        "mig_devices": len(report.migs),
        "problems": len(report.problems),
        "other_rows": len(report.rows),
    }
    health = sorted({gpu.health for gpu in report.gpus})
    notes = [*report.notes, *(f"{p.text}: {p.advice}" for p in report.problems)]
    notes += [f"GPU {gpu.index}: {gpu.health_note}" for gpu in report.gpus if gpu.health_note]
    return Found({**counted, "health": health} if any(counted.values()) else {}, _smi_rows(report), notes)


def _smi_rows(report: SmiReport) -> list[object]:
    rows: list[object] = []
    for what, found in (("gpu", report.gpus), ("mig", report.migs), ("problem", report.problems)):
        rows += [{"row": what, **mapping_or_empty(plain(item))} for item in found]
    rows += [
        {"row": "process", "gpu_uuid": uuid, **mapping_or_empty(plain(process))}
        for uuid, process in report.processes
    ]
    for row in report.rows:
        cells = [cell.value if cell.value is not None else (guarded(cell.text) or None) for cell in row.cells]
        problems = [cell.problem for cell in row.cells if cell.problem]
        rows.append({"row": "cells", "cells": cells, "problems": problems})
    return rows


def _options(data: bytes) -> Found:
    shown = sanitise(data)
    names = sorted(set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", shown)))
    ours = [n for n in names if n.startswith("speculative") or "dflash" in n or "ddtree" in n]
    return Found({"options": len(names), "speculative": ours}, [{"option": name} for name in names])


def _json(data: bytes) -> Found:
    decoded = clean_json(decode_json(data, "the file"), "the file")
    top = mapping_or_empty(decoded)
    detail = text(top.get("detail"), 300)
    note = f"the server answered {detail!r} in place of data" if detail else "JSON of no kind known here"
    if top:
        return Found({"keys": len(top)}, [{"name": k, "value": v} for k, v in top.items()], (note,))
    return Found({"items": len(items(decoded))}, [{"value": v} for v in items(decoded)[:1000]], (note,))


def _json_lines(data: bytes) -> Found:
    good: list[object] = []
    broken = 0
    for line in data.decode("utf-8", "replace").splitlines():
        if line.strip():
            try:
                good.append(clean_json(json.loads(line), "a line"))
            except (ValueError, RecursionError, FormatError):
                broken += 1
    notes = [f"{broken} line(s) are not JSON"] if broken else []
    return Found({"records": len(good)}, good[:1000], notes)


def _text(data: bytes) -> Found:
    lines = [line for line in sanitise(data).split("\n") if line.strip()]
    longest = max((len(line) for line in lines), default=0)
    rows = [{"line": guarded(line)[:500]} for line in lines[:200]]
    return Found({"lines": len(lines), "longest": longest}, rows, ("plain text of no kind known here",))


READERS: dict[str, Callable[[bytes], Found]] = {
    "metrics": _metrics,
    "server-info": _server_info,
    "loads": _loads,
    "model-info": lambda data: Found(read_model_info(data)),
    "models": lambda data: Found({"models": len(read_models(data))}, read_models(data)),
    "generate": _generate,
    "bench": _bench,
    "nvidia-smi": _nvidia_smi,
    "draft-config": lambda data: Found(config := read_draft_config(data), notes=config.notes),
    "options": _options,
    "json": _json,
    "json-lines": _json_lines,
    "text": _text,
}
