"""The folder of a run: everything that is needed to find, judge and stop it, kept on the host alone.

run.json      what was launched, by whom and when; written once
environment   environment of the server, secrets included; read and unlinked before the server starts
pid           identity of the server: pid, start time, boot id, group; on disk before the server starts
supervisor    identity of the supervisor that waits for it
log, log.1    what the server prints, and what was before the last rotation
stop          the first stop request: time, grace, who
stopped       what a stop found at its end
exit          exit code, time, start time of a process that began right after
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
from typing import Any, NamedTuple

from dflash_backend.hostside import _procs

RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
MAX_RECORD = 1 << 20
MARKER = "DFLASH_RUN_ID"
"""Environment variable that every process of a run inherits, whatever group or session it moves to."""


class HostError(Exception):
    """A plain message for the user. ``kind`` is that of the console's errors: failed, refused, usage."""

    def __init__(self, kind: str, what: str, next_step: str = "") -> None:
        super().__init__(what)
        self.kind = kind
        self.next = next_step


class Identity(NamedTuple):
    """A process that can be told from any other that has its pid later."""

    pid: int
    start: int
    boot_id: str
    pgid: int
    session: int


class Exit(NamedTuple):
    """How a run ended. ``tick`` is the start time of a process that began once it had been waited for."""

    code: int
    at: float
    tick: int


def root() -> str:
    """Where the runs of this user are."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # the XDG specification tells to ignore relative values
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "dflash-console", "runs")


def ensure_root(path: str) -> None:
    """Creates the folder of the runs, mode 0700. Raises HostError when it cannot be made or believed."""
    try:
        os.makedirs(os.path.dirname(os.path.dirname(path)), exist_ok=True)
        for folder in (os.path.dirname(path), path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
    except OSError as error:
        raise HostError("failed", f"cannot create {path}: {error.strerror}") from None
    why = distrust(path)
    if why:
        raise HostError("refused", f"{path} {why}", "set its owner and its mode to 0700")


def folder_of(run_id: object) -> str:
    """The folder of a run. Raises HostError for what is no run id, or a run that is not there."""
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise HostError("usage", f"not a run id: {str(run_id)[:80]!r}")
    folder = os.path.join(root(), run_id)
    if not os.path.lexists(folder):
        raise HostError("usage", f"there is no run {run_id} on this host", "list the runs of the host")
    return folder


def distrust(folder: str) -> str:
    """Why what the folder says must not be acted upon; empty when it may."""
    try:
        facts = os.lstat(folder)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(facts.st_mode):
        return "is a link, not a folder"
    if not stat.S_ISDIR(facts.st_mode):
        return "is a file, not a folder"
    if facts.st_uid != os.geteuid():
        return f"belongs to another user (user id {facts.st_uid})"
    if facts.st_mode & 0o022:
        return f"others may write to it (mode {facts.st_mode & 0o7777:04o}), so nothing in it is believed"
    return ""


def write(folder: str, name: str, text: str, *, durable: bool = True) -> None:
    """Replaces a file of the folder in one step, mode 0600; nothing is left behind on failure."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        os.unlink(temporary)
        raise


def read(folder: str, name: str) -> str | None:
    """A small file of the folder; None when it is missing. Raises OSError for any other reason."""
    try:
        handle = os.open(
            os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    with os.fdopen(handle, "rb") as stream:
        return stream.read(MAX_RECORD).decode("utf-8", "replace")


def read_record(folder: str, name: str) -> dict[str, Any] | None:
    """A JSON file of the folder. Raises ValueError when it is no JSON object."""
    text = read(folder, name)
    if text is None:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def read_identity(folder: str, name: str = "pid") -> Identity | None:
    """Identity as ``key=value`` lines. Raises ValueError when the file is damaged."""
    text = read(folder, name)
    if text is None:
        return None
    entries = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    try:
        found = Identity(
            pid=int(entries["pid"]),
            start=int(entries["start"]),
            boot_id=entries["boot_id"],
            pgid=int(entries["pgid"]),
            session=int(entries["session"]),
        )
    except KeyError as missing:
        raise ValueError(f"no {missing}") from None
    if found.pid <= 1 or found.pgid <= 1:  # 0 and 1 would address our own group, or everybody
        raise ValueError(f"pid {found.pid}, group {found.pgid}")
    return found


def write_identity(folder: str, one: _procs.Process, name: str = "pid") -> None:
    """Records a process of this boot."""
    lines = "pid=%d\nstart=%d\nboot_id=%s\npgid=%d\nsession=%d\n"
    write(folder, name, lines % (one.pid, one.start, _procs.boot_id(), one.pgrp, one.session))


def read_exit(folder: str) -> Exit | None:
    """How the run ended; None while nothing is recorded. Raises ValueError when the file is damaged."""
    text = read(folder, "exit")
    if text is None:
        return None
    fields = text.split()
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields")
    whole, _, part = fields[1].partition(".")  # not every date knows the nanoseconds
    at = float(f"{whole}.{part}") if part.isdigit() else float(whole)
    return Exit(int(fields[0]), at, int(float(fields[2])))


def leader(identity: Identity | None, boot_id: str) -> _procs.Process | None:
    """The recorded process if it still lives: same pid, start time, boot and group. Zombies do not live."""
    if identity is None or identity.boot_id != boot_id:
        return None
    one = _procs.process(identity.pid)
    if one is None or one.start != identity.start or one.pgrp != identity.pgid or not one.living:
        return None
    return one
