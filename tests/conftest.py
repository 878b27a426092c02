"""Shared fixtures: a HOME of its own for every test, and the real sshd."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rigs.sshd import Sshd, missing

# A runner in the background may have handed down ignored signals, and children would ignore them as well.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)


@pytest.fixture(autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the real user's files: HOME, XDG_* and the SSH agent are replaced."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("SSH_AUTH_SOCK", "DFLASH_CONSOLE_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    return home


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_home: Path) -> Iterator[Sshd]:
    """A running, trusted sshd under the alias ``rig``; HOME leads to its ssh configuration."""
    if reason := missing():
        pytest.skip(reason)
    with Sshd(tmp_path / "sshd") as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        yield server
