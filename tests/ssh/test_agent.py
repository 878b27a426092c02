"""Keys in a real ssh-agent: encrypted ones, and one key among many."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_backend.core.inventory import HostConfig
from dflash_backend.ssh.pool import SshPool
from rigs.sshd import Sshd, make_key, poll_until

pytestmark = pytest.mark.sshd


@pytest.fixture
def agent(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of a running agent without keys."""
    program = shutil.which("ssh-agent")
    if program is None:
        pytest.skip("ssh-agent is not installed")
    path = tmp_path / "agent"
    process = subprocess.Popen([program, "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    poll_until(path.exists, what="the agent's socket")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield str(path)
    process.terminate()
    process.wait(timeout=10)


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)


def encrypt(key: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "secret", "-P", "", "-f", str(key)], check=True, capture_output=True
    )


async def can_log_in(host: HostConfig) -> bool:
    pool = SshPool({host.name: host})
    try:
        return (await pool.link(host.name).run(["true"])).exit_status == 0
    finally:
        await pool.close()


async def test_an_encrypted_key_that_the_agent_holds(sshd: Sshd, agent: str) -> None:
    add(sshd.user_key)
    encrypt(sshd.user_key)
    assert await can_log_in(sshd.host_config())


async def test_one_configured_key_among_many_of_the_agent(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    sshd.options["MaxAuthTries"] = "2"
    sshd.restart()
    for number in range(8):
        add(make_key(tmp_path / f"key{number}"))
    assert await can_log_in(sshd.host_config())
    plain = HostConfig(
        name="plain", address=f"{sshd.user}@127.0.0.1:{sshd.port}", identity_file=str(sshd.user_key)
    )
    assert await can_log_in(plain)
    add(sshd.user_key)
    encrypt(sshd.user_key)
    assert await can_log_in(plain)
