"""The demo's cluster: one loopback host, N servers of the reference engine with different profiles."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_backend.core.errors import UsageError
from dflash_backend.core.inventory import HostConfig, Inventory, ServerConfig
from dflash_backend.core.paths import ensure_dir, state_dir, write_atomic
from dflash_backend.demo.ssh_server import DemoSshServer

HOST = "demo"
PROFILES = ("ref-ddtree16", "ref-chain", "ref-window-ignored", "ref-ar", "ref-window-clamped", "ref-ddtree32")
"""What the servers run, in this order: the tree, the chain, the origin story's fault, the baseline, ..."""
MAX_SERVERS = 8


class DemoCluster:
    """Everything of the demo lives in one folder, which goes when it is closed.

    The servers are launched over SSH by the ordinary operator: nothing in here starts one.
    """

    def __init__(self, servers: int = 3, root: Path | None = None) -> None:
        if not 1 <= servers <= MAX_SERVERS:
            raise UsageError(f"--servers {servers}: the demo runs 1 to {MAX_SERVERS} servers")
        self._count = servers
        self.root = root or state_dir() / "demo" / str(os.getpid())
        self._ssh: DemoSshServer | None = None

    @property
    def known_hosts(self) -> Path:
        """The known_hosts file that holds the demo host's key and nothing else."""
        return self.root / "known_hosts"

    async def open(self) -> Inventory:
        """Starts the SSH server and returns the inventory to use."""
        home = ensure_dir(self.root / "host")
        environment = {
            "HOME": str(home),
            "XDG_STATE_HOME": str(ensure_dir(home / "state")),
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
        }
        # On two cores, threads of several engines in each other's way cost more than they give.
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        for name in ("OPENBLAS_CORETYPE", "PYTHONPATH", "VIRTUAL_ENV"):
            if name in os.environ:
                environment[name] = os.environ[name]
        self._ssh = DemoSshServer(self.root / "ssh", environment)
        await self._ssh.start()
        write_atomic(self.known_hosts, self._ssh.host_key_line + "\n")
        host = HostConfig(
            name=HOST,
            address=f"demo@127.0.0.1:{self._ssh.port}",
            python=sys.executable,
            identity_file=str(self._ssh.client_key),
        )
        ports = free_ports(self._count)
        servers = {}
        for index, port in enumerate(ports):
            profile = PROFILES[index % len(PROFILES)]
            name = f"{profile.removeprefix('ref-')}-{index + 1}"
            servers[name] = ServerConfig(name=name, host=HOST, port=port, profile=profile)
        return Inventory(
            path="(demo)",
            hosts={HOST: host},
            servers=servers,
            pinned=PROFILES,
        )

    async def close(self, *, remove: bool = True) -> None:
        """Stops the SSH server and removes the folder; not while servers are left, which are found by it."""
        if self._ssh is not None:
            await self._ssh.close()
        if remove:
            shutil.rmtree(self.root, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Distinct ports on 127.0.0.1 that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def cleaning() -> Iterator[bool]:
    """True when nobody else cleans up after dead demos at the same time."""
    path = ensure_dir(state_dir() / "demo") / "lock"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def stale_roots() -> list[Path]:
    """Folders of demos whose console has died without cleaning up. Call it before there is one of ours."""
    base = state_dir() / "demo"
    if not base.is_dir():
        return []
    return [path for path in base.iterdir() if path.name.isdigit() and not _alive(int(path.name))]


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        # In a container the process numbers begin anew: this was the number of a demo before us.
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
