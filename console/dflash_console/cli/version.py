"""The version of this console."""

from __future__ import annotations


def version() -> str:
    """As installed; "unknown" where the source tree is used without installing it."""
    from importlib import metadata

    try:
        return metadata.version("dflash-sglang-console")
    except metadata.PackageNotFoundError:
        return "unknown"
