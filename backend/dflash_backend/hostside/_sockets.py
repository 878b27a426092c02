"""Who listens on a TCP port of this host, as far as this user may see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from dflash_backend.hostside import _procs

LISTEN = "0A"


class Listener(NamedTuple):
    """A listening socket. ``inode`` leads to the processes that hold it."""

    port: int
    uid: int
    inode: int


def listeners() -> list[Listener]:
    """All listening TCP sockets, IPv4 and IPv6, on any address."""
    found = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        raw = _procs.read_bytes(name, 1 << 24) or b""
        for line in raw.decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTEN:
                port = int(fields[1].rpartition(":")[2], 16)
                found.append(Listener(port, int(fields[7]), int(fields[9])))
    return found


def on_port(port: int) -> list[Listener]:
    """The sockets that listen on ``port``, whatever the address."""
    return [one for one in listeners() if one.port == port]


def holders(inodes: set[int], pids: Iterable[int]) -> set[int]:
    """Those of ``pids`` that hold one of these sockets; processes of other users cannot be looked into."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(folder + "/" + name)
            except OSError:
                continue
            if target in wanted:
                found.add(pid)
                break
    return found


def who(port: int) -> str:
    """Who listens on ``port``, in words; empty when nobody does."""
    sockets = on_port(port)
    if not sockets:
        return ""
    pids = holders({one.inode for one in sockets}, _procs.processes())
    seen = [_procs.process(pid) for pid in sorted(pids)[:3]]
    names = [f"pid {one.pid} ({one.name})" for one in seen if one is not None]
    return ", ".join(names) or f"a process that cannot be seen from here (user id {sockets[0].uid})"
