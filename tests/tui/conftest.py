"""Tests of the TUI: nothing of the developer's own machine, clock or terminal can change them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _quiet_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_THEME", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield
    monkeypatch.undo()
    time.tzset()
