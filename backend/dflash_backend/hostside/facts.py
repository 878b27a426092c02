"""The few facts that a plan needs: interpreter, SGLang and its options, plugin, GPUs. Cheap and read-only."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, BinaryIO

from dflash_backend.hostside._compute_caps import compute_caps
from dflash_backend.hostside._installed import distributions, entry_points, interpreter
from dflash_backend.hostside._options import read_options


def _options() -> list[str] | None:
    """The options that the SGLang which an import would take declares in its source; None: cannot be read."""
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    if not folders:
        return None
    names, problem = read_options(folders[0])
    return None if problem else sorted(names)


def main(request: dict[str, Any], emit: Callable[[object], None], stdin: BinaryIO) -> dict[str, Any]:
    """Answers at once; the request is empty."""
    return {
        "python": interpreter(),
        "sglang": distributions("sglang"),
        "options": _options(),
        "plugins": entry_points("sglang.srt.plugins"),
        "engine": distributions("dflash-sglang-console"),
        "compute_caps": compute_caps(),
    }
