"""Memory forecast of a plan: what the static fraction asks for against what is free, per GPU."""

from __future__ import annotations

from dflash_backend.core.profile import Profile, Program
from dflash_backend.core.samples import RunStatus, ServerSnapshot

_FRACTION = "mem-fraction-static"


def forecast(profile: Profile, now: ServerSnapshot | None, running: RunStatus | None) -> tuple[str, ...]:
    """Lines for people. SGLang takes ``mem-fraction-static`` of what is free at its start for weights and KV.

    Without that option, without GPU figures, or for a server on the CPU the lines say so instead of guessing.
    """
    if profile.program is Program.REFERENCE:
        return ("host memory only: about 300 MB with an 8k context",)
    if now is None or not now.gpus:
        return (now.gpu_note if now is not None and now.gpu_note else "no GPU figures from this host",)
    fraction = profile.options.get(_FRACTION)
    lines = []
    for gpu in now.gpus:
        total, used = gpu.memory_total_mib, gpu.memory_used_mib
        if total is None or used is None:
            lines.append(f"GPU {gpu.index}: memory unknown")
            continue
        note = " after this server is stopped" if running is not None else ""
        own = sum(p.memory_mib or 0.0 for p in gpu.processes if running is not None and p.pid == running.pid)
        free = total - used + own
        if isinstance(fraction, float):
            need = fraction * total
            verdict = "fits" if need <= free else "does NOT fit"
            lines.append(
                f"GPU {gpu.index}: {fraction:g} of {total:.0f} MiB = {need:.0f} MiB asked, "
                f"{free:.0f} MiB free{note}: {verdict}"
            )
        else:
            lines.append(
                f"GPU {gpu.index}: {free:.0f} of {total:.0f} MiB free{note}; SGLang chooses the fraction"
            )
    return tuple(lines)
