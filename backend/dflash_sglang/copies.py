"""Finds more than one copy of this plugin in an environment: which one would run is then a matter of luck."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

GROUP = "sglang.srt.plugins"
PACKAGE = "dflash_sglang"


def installed() -> list[tuple[str, str, Path]]:
    """(distribution, version, folder) of every distribution whose SGLang plugin is this package."""
    found: dict[Path, tuple[str, str, Path]] = {}
    for distribution in metadata.distributions():
        for point in distribution.entry_points:
            if point.group == GROUP and point.value.split(":")[0].split(".")[0] == PACKAGE:
                folder = Path(str(distribution.locate_file(""))).resolve()
                found[folder] = (distribution.metadata["Name"], distribution.version, folder)
    return list(found.values())


def problem(loaded_from: Path) -> str | None:
    """Why it is unclear which copy runs; None when there is one, and it is the one loaded.

    ``loaded_from`` is the folder of this package.
    """
    copies = installed()
    if len(copies) > 1:
        places = ", ".join(f"{name} {version} in {folder}" for name, version, folder in copies)
        return f"this plugin is installed {len(copies)} times ({places}): uninstall all but one"
    if copies and (copies[0][2] / PACKAGE) != loaded_from.resolve():
        name, version, folder = copies[0]
        return (
            f"{name} {version} is installed in {folder}, but Python loads {PACKAGE} from {loaded_from}: "
            "remove that folder, or take it off PYTHONPATH"
        )
    return None
