"""How long earlier starts took: what a plan says about the wait."""

from __future__ import annotations

import json
from pathlib import Path

from dflash_backend.core.paths import state_dir, write_atomic

_KEEP = 5


class StartTimes:
    """Seconds from launch to ready per host and profile digest, the last few, in the state folder.

    A damaged or missing file counts as no experience: it is only an estimate.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or state_dir() / "start-times.json"

    def _read(self) -> dict[str, list[float]]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(data, dict):
            return {}
        return {
            str(key): [float(v) for v in values if isinstance(v, int | float)]
            for key, values in data.items()
            if isinstance(values, list)
        }

    def add(self, host: str, digest: str, seconds: float) -> None:
        """Remembers one start; losing it to a full disk is not worth failing for."""
        data = self._read()
        key = f"{host}/{digest}"
        data[key] = [*data.get(key, []), round(seconds, 1)][-_KEEP:]
        try:
            write_atomic(self._path, json.dumps(data))
        except OSError:
            return

    def range(self, host: str, digest: str) -> tuple[float, float, int] | None:
        """Fastest and slowest of the last starts and how many, or None when there was none."""
        values = self._read().get(f"{host}/{digest}", [])
        return (min(values), max(values), len(values)) if values else None
