"""Fixtures: one tiny random pair for the session (read only), and a fresh one per test to be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.pairs import TinyPair, write_tiny_pair


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return write_tiny_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def breakable(tmp_path: Path) -> TinyPair:
    return write_tiny_pair(tmp_path)
