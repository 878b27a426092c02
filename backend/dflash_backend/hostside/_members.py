"""Which processes are a run's: the rule that decides what a stop may signal.

A process belongs to a run when one of these proves it:
  - it is in the process group of the run's first process, and that group cannot have been used again. The
    kernel gives no new process a number that a living group bears, so a living first process proves the
    group, and so does any member that began before the first one was waited for;
  - it inherited ``DFLASH_RUN_ID=<run>`` in its environment: also in a group and session of its own;
  - it is in the run's systemd unit;
  - it descends from such a process, or was seen to, and leads or shares a group that such a one led.
"""

from __future__ import annotations

import os

from dflash_backend.hostside import _procs, _runfolder


def of_group(
    identity: _runfolder.Identity,
    ending: _runfolder.Exit | None,
    table: dict[int, _procs.Process],
    boot: str,
    leader_lives: bool,
) -> list[_procs.Process]:
    """Living processes in the group of a run that led its own; empty unless the group is proven to be its."""
    if identity.boot_id != boot or identity.pgid != identity.pid:
        one = table.get(identity.pid)
        return [one] if leader_lives and one is not None else []
    group = [one for one in table.values() if one.pgrp == identity.pgid and one.living]
    if leader_lives:
        return group
    # A zombie that bears the recorded start time still holds the number.
    first = table.get(identity.pid)
    if first is not None and first.start == identity.start:
        return group
    if ending is not None and any(
        one.session == identity.session and one.start <= ending.tick for one in group
    ):
        return group
    return []


class Tracker:
    """Follows the processes of one run through a stop; what was proven once stays proven while it lives."""

    def __init__(
        self,
        run_id: str,
        identity: _runfolder.Identity | None,
        ending: _runfolder.Exit | None,
        *,
        unit: str = "",
        marked: bool = True,
        excluded: _runfolder.Identity | None = None,
    ) -> None:
        self.identity = identity
        self.ending = ending
        self.unit = unit
        self.entry = (f"{_runfolder.MARKER}={run_id}").encode() if marked else b""
        self.boot = _procs.boot_id()
        self.excluded = excluded
        self.proven: dict[int, int] = {}
        """pid -> start time of every process that was ever found to be the run's."""
        self._looked: dict[int, tuple[int, bool]] = {}

    def living(self) -> list[_procs.Process]:
        """The run's processes that live now, found anew."""
        table = _procs.processes()
        own = _procs.ancestors(os.getpid(), table)
        found = {pid for pid, start in self.proven.items() if pid in table and table[pid].start == start}
        lives = _runfolder.leader(self.identity, self.boot) is not None
        if self.identity is not None:
            found |= {one.pid for one in of_group(self.identity, self.ending, table, self.boot, lives)}
        found |= {one.pid for one in table.values() if self._bears_mark(one)}
        found |= _procs.descendants(found, table)
        # Groups that a proven process leads or led, as long as a proven process is in them.
        groups = {table[pid].pgrp for pid in found} & (found | set(self.proven))
        found |= {one.pid for one in table.values() if one.pgrp in groups}
        kept = [
            table[pid] for pid in found if pid > 1 and pid not in own and not self._supervises(table[pid])
        ]
        for one in kept:
            self.proven[one.pid] = one.start
        return [one for one in kept if one.living]

    def _bears_mark(self, one: _procs.Process) -> bool:
        known = self._looked.get(one.pid)
        if known is not None and known[0] == one.start:
            return known[1]
        if not one.living or (self.identity is not None and one.start < self.identity.start):
            return False
        marked = bool(self.entry) and _procs.environment_has(one.pid, self.entry)
        if not marked and self.unit:
            marked = _procs.cgroup_has(one.pid, self.unit)
        self._looked[one.pid] = (one.start, marked)
        return marked

    def _supervises(self, one: _procs.Process) -> bool:
        """The supervisor and its helpers are in a session of their own and end by themselves."""
        return self.excluded is not None and self.excluded.session in (one.pid, one.session)
