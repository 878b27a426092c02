"""Finds out what a captured file is from its first bytes."""

from __future__ import annotations

import json
import re

from dflash_backend.core.text import sanitise
from dflash_backend.sglang.bench_output import HEAD as BENCH_HEAD
from dflash_backend.sglang.bench_output import is_bench_record
from dflash_backend.sglang.decode import items, mapping_or_empty
from dflash_backend.sglang.draft_config import is_draft_config
from dflash_backend.sglang.log import read_batch_line
from dflash_backend.sglang.metrics import is_metrics
from dflash_backend.sglang.nvidia_smi import read_nvidia_smi
from dflash_backend.sglang.startup import READY_TEXT

_STAMPED = re.compile(
    r"^\s*(?:\S+\s*\|\s*|\([^)]*\)\s*)?\[?(?:\d{4}-\d{2}-\d{2}[ T])?\d{2}:\d{2}:\d{2}", re.MULTILINE
)
_GPU_NAME = re.compile(r"\b(?:NVIDIA|GeForce|Tesla|Quadro|RTX|[ABH]\d{3,4}(?:-|$)|GPU-[0-9a-f]{8})")
_LOG_MARKS = re.compile(
    r"server_args=|Traceback \(most recent call last\)|^INFO:     |^(?:ERROR|WARNING|CRITICAL)[: ]|"
    r"Load weight begin|draft runner|: error: |^[A-Za-z_][\w.]*Error: ",
    re.MULTILINE,
)


def detect_kind(head: bytes, *, whole: bool = True, name: str = "") -> str:
    """What a file is, from its first bytes and, when these say nothing, its name."""
    shown = sanitise(head)
    start = shown.lstrip()[:1]
    if start in ("{", "[") and not _STAMPED.match(shown):
        kind = _json_kind(shown) if whole else _json_head_kind(shown)
        if kind:
            return kind
    if start and shown.lstrip().startswith(("data: {", "data:{")):
        return "generate"
    if is_metrics(head) or re.search(r"^# (?:HELP|TYPE) \S+ ", shown, re.MULTILINE):
        return "metrics"
    if BENCH_HEAD in shown:
        return "bench"
    if re.search(r"^usage: ", shown, re.MULTILINE) and "--model-path" in shown and ": error: " not in shown:
        return "options"
    return _line_kind(shown, name)


def _line_kind(shown: str, name: str) -> str:
    lines = [line for line in shown.split("\n") if line.strip()]
    if any(read_batch_line(line) for line in lines[:2000]) or READY_TEXT in shown:
        return "log"
    stamped = sum(1 for line in lines if _STAMPED.match(line))
    if stamped * 4 >= len(lines) or _LOG_MARKS.search(shown):
        return "log"
    smi = read_nvidia_smi("\n".join(lines[:500]))
    typed = smi.gpus or smi.processes or smi.migs or smi.problems
    wide = [row for row in smi.rows if len(row.cells) > 2]
    odd = any(cell.problem or _GPU_NAME.search(cell.text) for row in wide for cell in row.cells)
    if typed or odd or "nvsmi" in name.lower() or "nvidia-smi" in name.lower():
        return "nvidia-smi"
    if name.endswith(".log"):
        return "log"
    return "text"


def _json_kind(shown: str) -> str | None:
    try:
        value = json.loads(shown)
    except (ValueError, RecursionError):
        first = shown.lstrip().split("\n", 1)[0]
        try:
            line = json.loads(first)
        except (ValueError, RecursionError):
            return None
        return "bench" if is_bench_record(line) else "json-lines" if "\n" in shown.strip() else None
    return _kind_of_json(value)


def _json_head_kind(shown: str) -> str:
    """The kind of a large JSON file from its beginning."""
    if '"output_throughput"' in shown or '"dataset_name"' in shown:
        return "bench"
    if '"internal_states"' in shown or '"mem_fraction_static"' in shown:
        return "server-info"
    return "generate" if '"meta_info"' in shown else "json"


def _kind_of_json(value: object) -> str:
    first = mapping_or_empty(next(iter(items(value)), None))
    top = mapping_or_empty(value)
    if "loads" in top or {"num_reqs", "num_waiting_reqs"} <= set(first):
        return "loads"
    if is_bench_record(value):
        return "bench"
    if "internal_states" in top or ("model_path" in top and {"port", "mem_fraction_static"} & set(top)):
        return "server-info"
    if "model_path" in top:
        return "model-info"
    if top.get("object") == "list" and "data" in top:
        return "models"
    if any("meta_info" in part or "choices" in part for part in (top, first)):
        return "generate"
    return "draft-config" if is_draft_config(value) else "json"
