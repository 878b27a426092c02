"""What is installed in this interpreter, read from its metadata; nothing is imported or run."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any


def distributions(name: str) -> list[dict[str, Any]]:
    """Every installed copy of a distribution: version, folder, editable or not. The first one is imported."""
    wanted = name.lower().replace("_", "-")
    found = []
    for dist in metadata.distributions():
        try:
            own = (dist.metadata["Name"] or "").lower().replace("_", "-")
        except Exception:  # noqa: S112 (a damaged folder in site-packages is not our business)
            continue
        if own != wanted:
            continue
        direct = dist.read_text("direct_url.json") or ""
        found.append(
            {
                "version": dist.version,
                "where": str(dist.locate_file("")),
                "editable": '"editable": true' in direct or '"editable":true' in direct,
            }
        )
    return found


def interpreter() -> dict[str, Any]:
    """Path and version of the interpreter that runs this."""
    return {
        "path": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "prefix": sys.prefix,
        "venv": sys.prefix != sys.base_prefix,
        "writable": os.access(sys.prefix, os.W_OK),
    }


def entry_points(group: str) -> list[dict[str, str]]:
    """Names and targets of an entry point group, with the distribution each comes from."""
    found = []
    for dist in metadata.distributions():
        try:
            points = dist.entry_points
        except Exception:  # noqa: S112 (a damaged entry_points.txt)
            continue
        for point in points:
            if point.group == group:
                found.append(
                    {"name": point.name, "value": point.value, "distribution": dist.metadata["Name"] or ""}
                )
    return found
