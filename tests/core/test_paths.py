"""Files are private and replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dflash_backend.core import paths


def test_folders_follow_xdg_and_relative_values_are_ignored(
    monkeypatch: pytest.MonkeyPatch, isolated_home: Path, tmp_path: Path
) -> None:
    assert paths.config_dir() == isolated_home / ".config/dflash-console"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert paths.state_dir() == tmp_path / "dflash-console"
    assert paths.data_dir() == isolated_home / ".local/share/dflash-console"


def test_a_new_file_and_its_new_folders_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        paths.write_atomic(tmp_path / "a" / "b" / "f", "text")
        paths.append_line(tmp_path / "c" / "log", "one")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a/b/f").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "c/log").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "f"
    paths.write_atomic(target, "old")
    with pytest.raises(UnicodeEncodeError):
        paths.write_atomic(target, "new \ud800")
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        paths.write_atomic(folder, "x")
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "folder"]
