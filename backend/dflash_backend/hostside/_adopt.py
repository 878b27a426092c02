"""Makes a server that somebody started by hand a run: found by its port, recorded, from then on ours to stop.

Rules of the stop of an adopted run (see ``_stop`` and ``_members``): a process that leads its own group is
stopped with its group; one that shares the group of a shell or script is stopped with its descendants alone,
and nothing else of that group is touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from typing import Any

from dflash_backend.hostside import _launch, _procs, _runfolder, _runlist, _sockets
from dflash_backend.hostside._runfolder import HostError

SECRET_OPTION = re.compile(
    r"--[a-z0-9-]*(?:key|token|secret|password|passphrase|credential)s?", re.IGNORECASE
)
NOT_SECRET = re.compile(
    r"--(?:max|num|min|chunked|stream|log|mask|eos|bos|pad|speculative)-|--ssl-keyfile$|--.*-tokens$",
    re.IGNORECASE,
)
REDACTED = "\u00abredacted\u00bb"


def adopt(request: dict[str, Any]) -> dict[str, Any]:
    """Records the process that listens on ``port`` as a run of ``server`` and returns its row.

    Keys: server, port, profile, started_by, console_version, token. Asked again it returns the same run.
    Raises HostError (refused) when the process cannot be seen, is another user's, is no server process of
    its own (process 1, a parent of this session), or is a run of another server.
    """
    root = _runfolder.root()
    _runfolder.ensure_root(root)
    with _launch.held(os.path.join(root, ".launch-lock")):
        one = listener(request["port"])
        known = already(one, request["server"])
        if known is not None:
            return known
        run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{request['token']}"
        folder = os.path.join(root, run_id)
        try:
            os.mkdir(folder, 0o700)
            record(folder, run_id, one, request)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _launch.disk_error(root, error) from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return next(row for row in _runlist.RunList().rows(tails=False) if row["run_id"] == run_id)


def listener(port: int) -> _procs.Process:
    """The process that listens on ``port``, the uppermost of those that share it. Raises HostError."""
    sockets = _sockets.on_port(port)
    if not sockets:
        raise HostError("failed", f"nothing listens on port {port}", "start the server, or correct the port")
    table = _procs.processes()
    pids = _sockets.holders({one.inode for one in sockets}, table)
    if not pids:
        raise HostError(
            "refused",
            f"port {port} is held by a process that this user cannot see (user id {sockets[0].uid})",
            "connect as the user that started it",
        )
    above = {pid for pid in pids if table[pid].ppid not in pids}
    chosen = min(above, key=lambda pid: (table[pid].start, pid))
    one = table[chosen]
    if len({table[pid].pgrp for pid in above}) > 1:
        raise HostError(
            "refused",
            f"port {port} is shared by processes of different groups: {', '.join(map(str, sorted(above)))}",
            "stop all but one of them",
        )
    uid = _procs.owner(chosen)
    if uid != os.geteuid():
        raise HostError(
            "refused",
            f"pid {chosen} ({one.name}) belongs to another user (user id {uid})",
            "connect as that user",
        )
    if chosen == 1 or chosen in _procs.ancestors(os.getpid(), table):
        raise HostError(
            "refused",
            f"pid {chosen} ({one.name}) carries this session: stopping it would cut the host off",
        )
    return one


def already(one: _procs.Process, server: str) -> dict[str, Any] | None:
    """The living run that this process is of, None for no run. Raises HostError for another server's."""
    for row in _runlist.RunList().rows(tails=False):
        if not row["alive"] or row["pid"] is None:
            continue
        led = row["pgid"] == row["pid"] and row["pgid"] == one.pgrp
        if (
            row["pid"] == one.pid
            or led
            or _procs.environment_has(one.pid, (f"{_runfolder.MARKER}={row['run_id']}").encode())
        ):
            if row["server"] == server:
                return row
            raise HostError("refused", f"pid {one.pid} is run {row['run_id']} of server {row['server']}")
    return None


def record(folder: str, run_id: str, one: _procs.Process, request: dict[str, Any]) -> None:
    """Writes the folder of an adopted run; the identity last, and only if the process is still the same."""
    argv = without_secrets(_procs.arguments(one.pid))
    output = printed_to(one.pid)
    facts = {
        "schema": 1,
        "run_id": run_id,
        "server": request["server"],
        "profile": request["profile"],
        "port": request["port"],
        "argv": argv,
        "started_at": _procs.started_at(one, time.time()),
        "started_by": f"adopted by {request['started_by']}",
        "console_version": request["console_version"],
        "machine": os.uname().nodename,
        "manager": "adopted",
    }
    if output:
        facts["log_path"] = output
    _runfolder.write(folder, "run.json", json.dumps(facts, indent=1))
    now = _procs.process(one.pid)
    if now is None or now.start != one.start:
        raise HostError("refused", f"pid {one.pid} ended while it was being adopted")
    _runfolder.write_identity(folder, now)


def printed_to(pid: int) -> str:
    """The regular file that a process prints to; empty for a terminal, a pipe or a deleted file."""
    for number in (1, 2):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if path.startswith("/") and os.path.isfile(path) and not path.startswith("/dev/"):
            return path
    return ""


def without_secrets(argv: list[str]) -> list[str]:
    """A command line in which the value of every option with a secret's name is replaced."""
    out: list[str] = []
    hide = False
    for part in argv:
        name, equals, _ = part.partition("=")
        secret = bool(SECRET_OPTION.fullmatch(name)) and not NOT_SECRET.match(name)
        if hide and not part.startswith("--"):
            out.append(REDACTED)
        elif secret and equals:
            out.append(name + "=" + REDACTED)
        else:
            out.append(part)
        hide = secret and not equals
    return out
