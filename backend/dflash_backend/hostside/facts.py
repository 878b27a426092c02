"""The few facts that a plan needs: interpreter, SGLang, plugin, GPUs. Cheap and read-only."""

import os
import subprocess

from _installed import distributions, entry_points, interpreter


def _gpus():
    """Compute capability of each GPU as nvidia-smi tells it; None where it cannot be asked."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            env=dict(os.environ, LC_ALL="C"),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [line.strip() for line in done.stdout.decode("ascii", "replace").splitlines() if line.strip()]


def main(request, emit, stdin):
    return {
        "python": interpreter(),
        "sglang": distributions("sglang"),
        "plugin": distributions("dflash-sglang-plugin"),
        "plugins": entry_points("sglang.srt.plugins"),
        "engine": distributions("dflash-sglang-console"),
        "compute_caps": _gpus(),
    }
