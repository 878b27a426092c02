"""Writes backend/dflash_sglang/releases.json from SGLang's wheels.

    pip download --no-deps sglang==0.5.11 -d wheels        (and so on, one per release)
    python scripts/fingerprint_sglang.py wheels

Every release named in dflash_sglang.releases must be among the wheels.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "backend"))

from dflash_sglang import releases, sources  # noqa: E402


def fingerprints(wheel: Path, release: str) -> dict[str, tuple[str, str]]:
    """Signature and fingerprint of every name the plugin touches in this release."""
    names = releases.all_names(release)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        home = Path(folder)
        for module in {name.split(":")[0] for name in names}:
            archive.extract(module.replace(".", "/") + ".py", home)

        def locate(module: str) -> Path:
            return home / (module.replace(".", "/") + ".py")

        found = {name: sources.read(name, locate) for name in names}
    missing = [name for name, source in found.items() if source is None]
    if missing:
        raise SystemExit(f"{wheel.name} has no {', '.join(missing)}")
    return {name: (source.signature, source.fingerprint) for name, source in found.items() if source}


def main() -> None:
    """Reads the wheels in the folder given and writes the table."""
    folder = Path(sys.argv[1])
    table = {}
    for release in (*releases.PATCHED, *releases.VERIFIED):
        wheel = next(folder.glob(f"sglang-{release}-*.whl"), None)
        if wheel is None:
            raise SystemExit(f"no wheel of sglang {release} in {folder}")
        table[release] = fingerprints(wheel, release)
    target = ROOT / "backend" / "dflash_sglang" / "releases.json"
    target.write_text(json.dumps({"releases": table}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
