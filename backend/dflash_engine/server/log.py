"""The log in SGLang's form: ``[2026-01-31 12:00:00] text`` on standard error, one line an event."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict

from dflash_engine.api import EngineStats, LayerWindow, StartupStage, StepReport
from dflash_engine.server.args import ServerArgs

logger = logging.getLogger("dflash_engine")

_GB = 1024.0**3


def setup() -> None:
    """Sends our log lines to standard error in SGLang's format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def available_gb() -> float:
    """MemAvailable of this machine in GiB; 0.0 where /proc/meminfo does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) / 1024.0**2
    except (OSError, ValueError, IndexError):
        return 0.0
    return 0.0


def server_args_line(args: ServerArgs) -> str:
    """SGLang prints all arguments in one line; ours says by its class name whose they are."""
    inner = ", ".join(f"{name}={value!r}" for name, value in asdict(args).items())
    return f"server_args=ReferenceEngineArgs({inner}, device='cpu')"


def stage_lines(stage: StartupStage) -> list[str]:
    """A finished start-up stage in the words that SGLang uses for it."""
    detail = stage.detail
    if stage.name in ("target_weights", "drafter_weights"):
        kind = detail.get(
            "architecture", "Qwen3ForCausalLM" if stage.name == "target_weights" else "DFlashDraftModel"
        )
        size = detail.get("weight_bytes")
        gb = float(size) / _GB if isinstance(size, int | float) else 0.0
        return [
            "Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00]",
            (
                f"Load weight end. elapsed={stage.seconds:.2f} s, type={kind}, "
                f"avail mem={available_gb():.2f} GB, mem usage={gb:.2f} GB."
            ),
        ]
    if stage.name == "kv_pool":
        tokens = detail.get("tokens", detail.get("capacity_tokens", 0))
        size = detail.get("bytes", 0)
        half = float(size) / 2 / _GB if isinstance(size, int | float) else 0.0
        return [
            f"KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB",
            f"Memory pool end. avail mem={available_gb():.2f} GB",
        ]
    return []


def draft_runner_lines(
    *,
    algorithm: str,
    model: str,
    block_size: int | None,
    window_flag: int | None,
    compact: bool,
    mask_token_id: int | None,
    layers: tuple[LayerWindow, ...],
) -> list[str]:
    """SGLang's draft runner line, and what it does not tell: the window that each layer really attends to."""
    told = "; ".join(
        f"{layer.layer} {layer.declared} window={layer.window} {'causal' if layer.causal else 'non-causal'}"
        for layer in layers
    )
    return [
        (
            f"Initialized DFLASH draft runner. attention_backend=numpy, model={model}, "
            f"block_size={block_size}, draft_window_size={window_flag}, compact_cache={compact}"
        ),
        (
            f"DFLASH draft runner ready. mask_token=<|mask|>, mask_token_id={mask_token_id}, "
            "mask_token_id_override=None"
        ),
        f"dflash-engine: {algorithm} drafter layers attend: {told}",
    ]


def prefill_line(report: StepReport, stats: EngineStats, pending: int, rate: float) -> str:
    """``Prefill batch`` of SGLang 0.5.14."""
    usage = stats.used_tokens / stats.capacity_tokens if stats.capacity_tokens else 0.0
    return (
        f"Prefill batch, #new-seq: {report.new_requests}, #new-token: {report.prefill_tokens}, "
        f"#cached-token: 0, token usage: {usage:.2f}, #running-req: {stats.running}, "
        f"#queue-req: {stats.queued}, #pending-token: {pending}, cpu graph: False, "
        f"input throughput (token/s): {rate:.2f}"
    )


def decode_line(
    stats: EngineStats, *, running: int, rate: float, accept_length: float | None, accept_rate: float | None
) -> str:
    """``Decode batch`` of SGLang 0.5.14; the accept fields only under speculation."""
    usage = stats.used_tokens / stats.capacity_tokens if stats.capacity_tokens else 0.0
    spec = ""
    if accept_length is not None and accept_rate is not None:
        spec = f"accept len: {accept_length:.2f}, accept rate: {accept_rate:.2f}, "
    return (
        f"Decode batch, #running-req: {running}, #token: {stats.used_tokens}, "
        f"token usage: {usage:.2f}, {spec}cpu graph: False, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: {stats.queued}"
    )
