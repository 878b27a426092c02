"""Stops a run and proves it. The work is done by a process of its own that no lost connection can stop.

``begin`` detaches that process (one per run, held by a lock), ``wait`` asks how far it is and at the end
says what was proven. Both may be called as often as one likes, by as many consoles.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
import traceback
from typing import Any

from dflash_backend.hostside import _gpu_users, _members, _procs, _runfolder, _runlist, _sockets, _systemd
from dflash_backend.hostside._runfolder import HostError

AFTER_KILL_S = 60.0
"""A killed process may stand in the GPU driver for long while tens of gigabytes are given back."""
EXIT_WITHIN_S = 5.0
PORT_WITHIN_S = 5.0
GPU_WITHIN_S = 20.0
LOCK = ".stop-lock"


class Run:
    """What a stop knows of a run: its record, its identity, and how its processes are found."""

    def __init__(self, run_id: object) -> None:
        """Raises HostError where nothing on the disk may be believed."""
        self.folder = _runfolder.folder_of(run_id)
        self.run_id = os.path.basename(self.folder)
        why = _runfolder.distrust(self.folder)
        if why:
            raise HostError("refused", f"run folder {self.folder} {why}: nothing was signalled")
        self.problems: list[str] = []
        record = self._read("run.json", lambda: _runfolder.read_record(self.folder, "run.json"))
        self.record: dict[str, Any] = _runlist.typed(record or {})
        self.identity: _runfolder.Identity | None = self._read(
            "pid file", lambda: _runfolder.read_identity(self.folder)
        )
        self.supervisor: _runfolder.Identity | None = self._read(
            "supervisor file", lambda: _runfolder.read_identity(self.folder, "supervisor")
        )
        self.adopted = self.record.get("manager") == "adopted"
        self.unit = _systemd.unit_name(self.run_id) if self.record.get("manager") == "systemd" else ""
        self.tracker = _members.Tracker(
            self.run_id,
            self.identity,
            self.ending(),
            unit=self.unit,
            marked=not self.adopted,
            excluded=self.supervisor,
        )

    def _read(self, name: str, reader: Any) -> Any:
        try:
            return reader()
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{name} is damaged: {_runlist.reason(error)}")
            return None

    @property
    def port(self) -> int | None:
        """The port that the run was launched on, where its record can be read."""
        port = self.record.get("port")
        return port if isinstance(port, int) else None

    def ending(self) -> _runfolder.Exit | None:
        """The recorded exit, damaged counting as none."""
        try:
            return _runfolder.read_exit(self.folder)
        except (OSError, ValueError):
            return None

    def leader(self) -> _procs.Process | None:
        """The first process, while it lives and is the recorded one."""
        return _runfolder.leader(self.identity, _procs.boot_id())

    def signal(self, number: int) -> None:
        """Signals the whole group in one call where it is proven, and one by one what is outside of it."""
        living = self.tracker.living()
        first = self.leader()
        group = 0
        if first is not None and first.pid == first.pgrp:
            # While its leader lives, the group's number belongs to nobody else.
            group = first.pgrp
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for one in living:
            if one.pgrp != group or number == signal.SIGKILL:
                with contextlib.suppress(PermissionError):
                    _procs.signal_exactly(one.pid, one.start, number)


def begin(request: dict[str, Any]) -> dict[str, Any]:
    """Asks for a stop. Keys: run_id, grace_s, by. Returns at once: ``wait`` tells the rest.

    Raises HostError (refused) when it cannot be told which processes are the run's.
    """
    run = Run(request["run_id"])
    living = run.tracker.living()
    if not living and run.identity is None and run.problems:
        raise HostError(
            "refused",
            f"run {run.run_id} cannot be identified ({'; '.join(run.problems)}): nothing was signalled",
            "look for the process on the host, stop it by hand, then forget the run",
        )
    hurried = stopping(run.folder)
    wanted = {"at": time.time(), "grace_s": float(request["grace_s"]), "by": str(request.get("by", ""))}
    problem = ""
    try:
        earlier = _runfolder.read_record(run.folder, "stop") if hurried else None
        if earlier and _runlist.number(earlier.get("at")) is not None:
            wanted["at"] = earlier["at"]
        _runfolder.write(run.folder, "stop", json.dumps(wanted))
    except (OSError, ValueError, RecursionError) as error:
        # No reason not to stop: a full disk is when a stop is needed.
        problem = f"the stop request could not be recorded: {_runlist.reason(error)}"
    if not hurried and (living or not proven_before(run.folder)):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(run.folder, "stopped"))
    if living and not hurried:
        detach(run, float(request["grace_s"]), problem)
    return {"living": len(living)}


def proven_before(folder: str) -> bool:
    """True when an earlier stop has left nothing, so that its report still holds."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        report = _runfolder.read_record(folder, "stopped")
        if report is not None:
            return all(report.get(key) is not False for key in ("group_gone", "port_free", "gpu_free"))
    return False


def stopping(folder: str) -> bool:
    """True while a process works on the stop of this run."""
    try:
        handle = open_lock(folder, create=False)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def open_lock(folder: str, *, create: bool) -> int:
    """What a stop locks: a file, or the folder itself where the disk takes no more files.

    Not always the folder, since NFS locks for writing only what is open for writing.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        return os.open(os.path.join(folder, LOCK), flags, 0o600)
    except OSError:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def detach(run: Run, grace_s: float, problem: str) -> None:
    """Starts the process that carries out the stop; returns once it holds the lock."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.read(ready, 1)  # one byte when the lock is held, end of file when somebody else holds it
        os.close(ready)
        return
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        os.closerange(3, told)
        os.closerange(told + 1, 4096)
        lock = open_lock(run.folder, create=True)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if run.unit:
            _systemd.step_aside(f"dflash-stop-{run.run_id}-{os.getpid()}")
        os.write(told, b"1")
        os.close(told)
        carry_out(run, grace_s, problem)
    except BaseException:
        with contextlib.suppress(OSError):
            _runfolder.write(run.folder, "stop-trouble", traceback.format_exc()[-4000:])
    finally:
        os._exit(0)


def carry_out(run: Run, grace_s: float, problem: str) -> None:
    """TERM, wait, KILL, proof; what was found goes into ``stopped``."""
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGCONT)  # a suspended process could not obey
    killed = False
    pause = 0.02
    while True:
        living = run.tracker.living()
        if not living:
            break
        waited = time.monotonic() - began
        grace_s = min(grace_s, asked_grace(run.folder, grace_s))
        if not killed and waited >= grace_s:
            killed = True
            killed_at = time.monotonic()
        if killed:
            run.signal(signal.SIGKILL)  # again and again: it may be forking
            if time.monotonic() - killed_at > AFTER_KILL_S:
                break
        time.sleep(pause)
        pause = min(0.25, pause * 1.5)
    report = prove(run, patient=True)
    report.update(killed=killed, seconds=round(time.monotonic() - began, 3))
    if problem:
        report["notes"].append(problem)
    if run.unit and report["group_gone"]:
        _systemd.forget(run.run_id)
    with contextlib.suppress(OSError):  # on a full disk: whoever waits looks for himself
        _runfolder.write(run.folder, "stopped", json.dumps(report))


def asked_grace(folder: str, default: float) -> float:
    """The grace of the newest request: a second stop with a shorter one hurries the first."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        request = _runfolder.read_record(folder, "stop")
        value = _runlist.number(request.get("grace_s")) if request else None
        if value is not None:
            return value
    return default


def prove(run: Run, *, patient: bool) -> dict[str, Any]:
    """What is left of a run: processes, GPU memory, port, exit code. ``patient``: waits a little for each."""

    def until(condition: Any, seconds: float) -> Any:
        deadline = time.monotonic() + (seconds if patient else 0.0)
        while True:
            value = condition()
            if value is not False or time.monotonic() >= deadline:
                return value
            time.sleep(0.1)

    notes = list(run.problems)
    living = run.tracker.living()
    for one in living[:8]:
        notes.append(f"still there: pid {one.pid} ({one.name}), state {one.state}")
    watched = not run.adopted and run.supervisor is not None and alive(run.supervisor)
    if not living and watched:
        until(lambda: run.ending() is not None, EXIT_WITHIN_S)
    ending = run.ending()
    if ending is None and not run.adopted:
        notes.append("the exit code was not recorded")
    known = dict(run.tracker.proven)
    if run.identity is not None and run.identity.boot_id == run.tracker.boot:
        known[run.identity.pid] = run.identity.start
    gpu_note = ""

    def gpu_free() -> bool | None:
        nonlocal gpu_note
        free, gpu_note = _gpu_users.free_of(known)
        return free

    gpu = until(gpu_free, GPU_WITHIN_S)
    if gpu_note:
        notes.append(gpu_note)
    port_free = True
    if run.port is None:
        notes.append("the port of the run is not known")
    else:
        port = run.port
        port_free = until(lambda: not _sockets.on_port(port), PORT_WITHIN_S)
        if not port_free:
            holder = _sockets.who(port)
            port_free = not holder
            if holder:
                notes.append(f"port {port} is held by {holder}")
    return {
        "exit_code": ending.code if ending else None,
        "group_gone": not living,
        "gpu_free": gpu,
        "port_free": bool(port_free),
        "killed": False,
        "seconds": 0.0,
        "notes": notes,
    }


def alive(identity: _runfolder.Identity) -> bool:
    """True while the process of this identity lives."""
    return _runfolder.leader(identity, _procs.boot_id()) is not None


def wait(request: dict[str, Any]) -> dict[str, Any]:
    """Waits at most ``wait_s`` for the end of a stop. ``report`` is None while it goes on."""
    run = Run(request["run_id"])
    deadline = time.monotonic() + float(request.get("wait_s", 0.0))
    while stopping(run.folder):
        if time.monotonic() >= deadline:
            return {"report": None, "living": len(run.tracker.living())}
        time.sleep(0.05)
    report = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        report = _runfolder.read_record(run.folder, "stopped")
    if report is None:
        report = prove(run, patient=True)
        identity = run.identity
        if identity is not None and report["group_gone"]:
            now = _procs.process(identity.pid)
            if now is not None and now.start != identity.start:
                report["notes"].append(
                    f"pid {now.pid} belongs to another process now ({now.name}): it was not signalled"
                )
        with contextlib.suppress(OSError, ValueError):
            text = _runfolder.read(run.folder, "stop-trouble")
            if text:
                report["notes"].append(f"the stop broke off: {text.strip().splitlines()[-1]}")
    return {"report": report, "living": 0}
