"""Fixtures of the SSH tests: a connected link, and host programs made on the spot."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dflash_backend.ssh import programs as programs_module
from dflash_backend.ssh.pool import SshPool
from dflash_backend.ssh.session import SshLink
from rigs.sshd import Sshd


class ProgramFolder:
    """Stands in for the folder of the shipped host programs; holds the real prelude."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("prelude", programs_module.PROGRAMS.joinpath("prelude.py").read_text())

    def write(self, name: str, source: str) -> None:
        """Makes a program or a module of one."""
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgramFolder]:
    """A folder of host programs that the test writes."""
    folder = tmp_path / "programs"
    folder.mkdir()
    made = ProgramFolder(folder)
    monkeypatch.setattr(programs_module, "PROGRAMS", folder)
    for cache in (programs_module._source, programs_module.program_sources):
        cache.cache_clear()
    yield made
    for cache in (programs_module._source, programs_module.program_sources):
        cache.cache_clear()


@pytest.fixture
async def pool(sshd: Sshd) -> AsyncIterator[SshPool]:
    """A pool with the one host ``rig``."""
    made = SshPool({"rig": sshd.host_config()})
    yield made
    await made.close()


@pytest.fixture
def link(pool: SshPool) -> SshLink:
    """The link to the running sshd."""
    return pool.link("rig")
