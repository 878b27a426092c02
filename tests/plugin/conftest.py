"""The plugin as it lies on a host, and the reference pair."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

import dflash_engine
from dflash_backend.plugin_install import wheel

PAIR = Path(dflash_engine.__file__).parent / "data" / "reference_pair"


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin's wheel, unpacked as in site-packages; a server loads it from PYTHONPATH."""
    folder = tmp_path_factory.mktemp("plugin")
    zipfile.ZipFile(io.BytesIO(wheel.build().data)).extractall(folder)
    return folder


@pytest.fixture
def drafter_with(tmp_path: Path):
    """Makes a drafter with the reference weights and a changed config.json (... leaves a field out)."""

    def make(**changes: object) -> Path:
        folder = tmp_path / f"drafter-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        fields = json.loads((PAIR / "drafter" / "config.json").read_text()) | changes
        fields = {name: value for name, value in fields.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(fields))
        (folder / "model.safetensors").symlink_to(PAIR / "drafter" / "model.safetensors")
        return folder

    return make
