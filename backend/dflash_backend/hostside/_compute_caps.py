"""The GPUs' compute capability as nvidia-smi tells it."""

from __future__ import annotations

import os
import subprocess


def compute_caps() -> list[str] | None:
    """``["12.0", ...]``, one a GPU; None where it cannot be asked."""
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
