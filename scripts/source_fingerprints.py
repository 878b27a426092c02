"""Writes backend/dflash_backend/audit/stock_sources.json from SGLang's wheels.

    pip download --no-deps sglang==0.5.11 -d wheels        (and so on, one per release)
    python scripts/source_fingerprints.py wheels

The file holds hashes only: facts by which the audit tells a stock installation from a changed one.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

from dflash_backend.audit.fingerprints import FINGERPRINTED, fingerprint
from dflash_backend.sglang.versions import parse_version

OUT = Path(__file__).parent.parent / "backend/dflash_backend/audit/stock_sources.json"


def read(wheel: Path) -> dict[str, str]:
    """Hashes of the files of one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        return {path: fingerprint(archive.read(path)) for path in FINGERPRINTED if path in names}


def main(folder: Path) -> None:
    """Writes the table for every wheel in ``folder``."""
    releases = {wheel.name.split("-")[1]: read(wheel) for wheel in folder.glob("sglang-*.whl")}
    ordered = {name: releases[name] for name in sorted(releases, key=lambda name: parse_version(name).order)}
    OUT.write_text(json.dumps({"schema": 1, "releases": ordered}, indent=1) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(ordered)} releases")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
