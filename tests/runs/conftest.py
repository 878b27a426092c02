"""Fixtures of the run tests: a host behind a real sshd, and nothing left of it afterwards."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from dflash_backend.core.samples import RunStatus
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.session import SshLink
from rigs.run_host import Host
from rigs.sshd import Sshd, poll_until


@pytest.fixture
def host(sshd: Sshd, tmp_path: Path) -> Iterator[Host]:
    """A host with an empty list of runs; whatever was launched there is gone at the end."""
    value = Host(sshd, tmp_path)
    yield value
    value.clean_up()


@pytest.fixture
async def link(host: Host) -> AsyncIterator[SshLink]:
    """The connection to the host."""
    value = SshLink(host.sshd.host_config())
    yield value
    await value.close()


@pytest.fixture
async def runs(link: SshLink) -> HostRuns:
    """The service under test."""
    return HostRuns(link)


@pytest.fixture
def over(host: Host) -> Callable[[RunStatus], None]:
    """Waits until the exit of a run is recorded."""

    def wait(run: RunStatus) -> None:
        poll_until(lambda: os.path.exists(os.path.join(run.folder, "exit")), what="the recorded exit")

    return wait
