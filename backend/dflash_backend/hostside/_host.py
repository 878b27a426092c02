"""Memory, load, known processes and listening ports of this host, cheap enough for every second."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from dflash_backend.hostside import _listening, _procs, _sockets

SCAN_EVERY_S = 10.0
"""Reading all of /proc costs milliseconds: so often at most while nothing changes."""
SCAN_YOUNG_S = 2.0
YOUNG_S = 60.0
"""A starting server gets new processes: for so long they are looked for more often."""


def host_figures() -> dict[str, Any]:
    """Memory in MiB and the load of one minute."""
    figures: dict[str, Any] = {"memory_total_mib": None, "memory_available_mib": None}
    # The first lines are enough; the whole file costs several times as much.
    with open("/proc/meminfo", "rb") as stream:
        for line in stream:
            if line.startswith(b"MemTotal:"):
                figures["memory_total_mib"] = int(line.split()[1]) / 1024
            elif line.startswith(b"MemAvailable:"):
                figures["memory_available_mib"] = int(line.split()[1]) / 1024
                break
    figures["load1"] = os.getloadavg()[0]
    return figures


class Table:
    """The processes of some groups: known ones are read again each time, unknown ones looked for rarely."""

    def __init__(self) -> None:
        self.processes: dict[int, _procs.Process] = {}
        self.since: dict[int, float] = {}
        self.scanned: float | None = None

    def refresh(self) -> dict[int, _procs.Process]:
        """The known processes as they are now; all of /proc when it is time for that."""
        now = time.monotonic()
        young = any(now - began < YOUNG_S for began in self.since.values())
        due = SCAN_YOUNG_S if young else SCAN_EVERY_S
        if self.since and (self.scanned is None or now - self.scanned >= due):
            self.scanned = now
            self.processes = {pid: one for pid, one in _procs.processes().items() if one.pgrp in self.since}
            return self.processes
        known = {}
        for pid, old in self.processes.items():
            one = _procs.process(pid)
            if one is not None and one.start == old.start:
                known[pid] = one
        if len(known) != len(self.processes):
            self.scanned = None  # somebody went: look again next time
        self.processes = known
        return known

    def follow(self, groups: Iterable[int]) -> bool:
        """Sets the groups to follow; True when there are new ones, whose members are found by ``refresh``."""
        wanted = set(groups)
        now = time.monotonic()
        fresh = wanted - set(self.since)
        self.since = {group: self.since.get(group, now) for group in wanted}
        if fresh:
            self.scanned = None
        return bool(fresh)

    def members(self, group: int) -> set[int]:
        """Pids of the living members of a group."""
        return {pid for pid, one in self.processes.items() if one.pgrp == group and one.living}


class Ports:
    """Which of the watched ports something listens on, and the pid where this user may see it."""

    def __init__(self) -> None:
        self.owners: dict[int, int | None] = {}
        self.searched: float | None = None

    def listening(self, ports: Iterable[int], likely: Iterable[int]) -> dict[int, int | None]:
        """Port -> pid (None: not visible). ``likely`` pids are looked into first, all others rarely."""
        wanted = set(ports)
        if not wanted:
            return {}
        sockets = {port: inode for port, inode in _listening.listening().items() if port in wanted}
        used = set(sockets.values())
        self.owners = {inode: pid for inode, pid in self.owners.items() if inode in used}
        self._search({inode for inode in used if self.owners.get(inode) is None}, likely)
        now = time.monotonic()
        left = {inode for inode in used if self.owners.get(inode) is None}
        fresh = left - set(self.owners)
        if left and (fresh or self.searched is None or now - self.searched >= SCAN_EVERY_S):
            self.searched = now
            self._search(left, (int(name) for name in os.listdir("/proc") if name.isdigit()))
            for inode in left:
                self.owners.setdefault(inode, None)
        return {port: self.owners.get(inode) for port, inode in sockets.items()}

    def _search(self, inodes: set[int], pids: Iterable[int]) -> None:
        left = set(inodes)
        for pid in sorted(pids):
            if not left:
                return
            for inode in list(left):
                if _sockets.holders({inode}, [pid]):
                    self.owners[inode] = pid
                    left.discard(inode)


def pids_by_gpu(rows: list[dict[str, Any]]) -> dict[int, set[int]]:
    """GPU index -> pids that hold memory on it."""
    return {row["index"]: {entry["pid"] for entry in row.get("processes", ())} for row in rows}


def gpus_of(pids: set[int], by_gpu: dict[int, set[int]]) -> list[int] | None:
    """GPUs that the processes use; None when none can be seen (another pid namespace, or not yet)."""
    return sorted(index for index, holders in by_gpu.items() if holders & pids) or None
