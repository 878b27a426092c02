"""Processes of this host as /proc shows them: who they are, and a signal that reaches only the one meant.

A pid alone names nobody: it is used again. Here a process is a pid together with its start time (field 22
of /proc/PID/stat, in clock ticks since boot) and the boot id of the kernel.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """What matters of /proc/PID/stat. ``start`` is in ticks since boot, ``rss`` in pages."""

    pid: int
    ppid: int
    pgrp: int
    session: int
    state: str
    start: int
    rss: int
    name: str

    @property
    def living(self) -> bool:
        """False for a zombie: it holds neither memory nor a GPU nor a port, and cannot be signalled away."""
        return self.state not in "ZXx"


def parse_stat(raw: bytes) -> Process | None:
    """The fields of a stat line; the name may hold spaces, brackets and newlines. None when it is cut off."""
    opened, closed = raw.find(b"("), raw.rfind(b")")
    fields = raw[closed + 1 :].split()
    if opened < 0 or closed < opened or len(fields) < 22:
        return None
    return Process(
        pid=int(raw[:opened]),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode("ascii", "replace"),
        start=int(fields[19]),
        rss=int(fields[21]),
        name=raw[opened + 1 : closed].decode("utf-8", "replace"),
    )


def read_bytes(path: str, limit: int = 1 << 20) -> bytes | None:
    """At most ``limit`` bytes of a file; None when it is gone or not for us."""
    try:
        with open(path, "rb") as stream:
            return stream.read(limit)
    except OSError:
        return None


def process(pid: int) -> Process | None:
    """The process that has this pid now, zombies included."""
    raw = read_bytes(f"/proc/{pid}/stat")
    return parse_stat(raw) if raw else None


def processes() -> dict[int, Process]:
    """All processes that can be seen, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            one = process(int(name))
            if one is not None:
                found[one.pid] = one
    return found


def boot_id() -> str:
    """Names this boot of the kernel; empty where /proc does not tell."""
    return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()


def uptime() -> float:
    """Seconds since boot, on the clock of ``Process.start``. In some containers /proc/uptime is another."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_at(one: Process, now: float) -> float:
    """Seconds since the epoch at which a process began; ``now`` is the present on the same clock."""
    return now - uptime() + one.start / TICKS


def owner(pid: int) -> int | None:
    """The real user id; /proc/PID itself belongs to root when the process cannot be dumped."""
    for line in (read_bytes(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def arguments(pid: int) -> list[str]:
    """The command line; empty for a zombie or a process of somebody else."""
    raw = read_bytes(f"/proc/{pid}/cmdline") or b""
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def environment_has(pid: int, entry: bytes) -> bool:
    """True when the process was started with exactly this ``NAME=value``."""
    raw = read_bytes(f"/proc/{pid}/environ", 1 << 22)
    return bool(raw) and entry in (raw or b"").split(b"\0")


def cgroup_has(pid: int, unit: str) -> bool:
    """True when the process belongs to this systemd unit."""
    raw = read_bytes(f"/proc/{pid}/cgroup") or b""
    wanted = unit.encode()
    return any(wanted in line.split(b"/") for line in raw.splitlines())


def ancestors(pid: int, table: dict[int, Process]) -> set[int]:
    """``pid`` and everything above it, so that nobody signals the branch that he sits on."""
    line: set[int] = set()
    while pid and pid not in line:
        line.add(pid)
        above = table.get(pid)
        pid = above.ppid if above else 0
    return line


def descendants(roots: set[int], table: dict[int, Process]) -> set[int]:
    """Everything below ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for one in table.values():
        children.setdefault(one.ppid, []).append(one.pid)
    below: set[int] = set()
    pending = list(roots)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in below and child not in roots:
                below.add(child)
                pending.append(child)
    return below


def signal_exactly(pid: int, start: int, number: int) -> bool:
    """Signals the process that began at ``start`` and nobody who has its pid now; True when it was sent.

    With a pidfd (Linux 5.3, Python 3.9) there is no moment between the check and the signal; elsewhere the
    moment is some microseconds long. Raises PermissionError for a process of somebody else.
    """
    handle = None
    if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            handle = None  # an old kernel, or a container that filters the call
    try:
        now = process(pid)
        if now is None or now.start != start or not now.living:
            return False
        if handle is not None:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True
