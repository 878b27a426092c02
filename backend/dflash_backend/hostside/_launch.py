"""Starts a run: checks first, then a run folder, a supervisor, and an answer once the identity is on disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from dflash_backend.hostside import _members, _procs, _runfolder, _runlist, _sockets, _systemd
from dflash_backend.hostside._runfolder import HostError

MIN_FREE_MIB = 16
"""Less free space than this and a launch is refused: the log alone would fill it."""
IDENTITY_WITHIN_S = 20.0
LOCK_WITHIN_S = 10.0
# What belongs to the login and not to what is started from it.
LOGIN_ONLY = (
    "SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK SSH_ORIGINAL_COMMAND TERM "
    "XDG_SESSION_ID XDG_SESSION_TYPE XDG_SESSION_CLASS PWD OLDPWD SHLVL _"
).split()
FULL = (errno.ENOSPC, errno.EDQUOT)


def launch(request: dict[str, Any]) -> dict[str, Any]:
    """Starts the server of ``request`` and returns its row.

    Keys: server, profile, profile_digest, profile_toml, argv, port, env, secret_env, started_by,
    console_version, cwd (None: home), log_cap_mib, token (8 hex digits that end the run id), files (the
    supervisor and the child program), systemd (False: not even where it could be used). Raises HostError
    with nothing left running and no folder.
    """
    if not os.path.exists("/proc/self/stat"):
        raise HostError("failed", "this host has no /proc: runs need Linux")
    root = _runfolder.root()
    _runfolder.ensure_root(root)
    cwd = os.path.expanduser(request.get("cwd") or "~")
    if not os.path.isdir(cwd):
        raise HostError("failed", f"there is no folder {cwd} to start the server in")
    base = {key: value for key, value in os.environ.items() if key not in LOGIN_ONLY}
    argv = [resolve(request["argv"][0], {**base, **request["env"]}.get("PATH"), cwd), *request["argv"][1:]]
    check_space(root)
    with held(os.path.join(root, ".launch-lock")):
        check_free(request["server"], request["port"])
        run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{request['token']}"
        folder = os.path.join(root, run_id)
        # From here to the end a lost connection must not leave half of a launch: it is done or undone.
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            os.mkdir(folder, 0o700)
            manager = fill(folder, run_id, argv, cwd, base, request)
            begin(folder, run_id, manager, int(request["log_cap_mib"]))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise disk_error(root, error) from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return next(row for row in _runlist.RunList().rows(tails=False) if row["run_id"] == run_id)


def resolve(command: str, path: str | None, cwd: str) -> str:
    """The program to execute: ``~`` expanded, a venv folder taken as its Python, a bare name looked up."""
    name = os.path.expanduser(command)
    if "/" not in name:
        found = shutil.which(name, path=path)
        if found is None:
            raise HostError("failed", f"there is no program {name} on this host", "give its full path")
        return found
    name = os.path.join(cwd, name)
    if os.path.isdir(name):
        name = os.path.join(name, "bin", "python")
    if not os.path.exists(name):
        raise HostError("failed", f"there is no interpreter {name} on this host", "create it, or set python")
    if os.path.isdir(name) or not os.access(name, os.X_OK):
        raise HostError("failed", f"{name} is not executable", "chmod +x, or set python to an interpreter")
    return name


def check_space(root: str) -> None:
    """Refuses a launch on a full disk before anything is written."""
    space = os.statvfs(root)
    free = space.f_bavail * space.f_frsize // 2**20
    if free < MIN_FREE_MIB:
        raise HostError(
            "failed",
            f"the disk of {root} is full: {free} MiB free, a run needs {MIN_FREE_MIB}",
            "free some space, or forget old runs",
        )
    if space.f_files and space.f_favail < 32:
        raise HostError(
            "failed", f"the disk of {root} has no inodes left", "remove files, or forget old runs"
        )


def disk_error(root: str, error: OSError) -> HostError:
    """What went wrong while the folder was written, in words."""
    if error.errno in FULL:
        return HostError("failed", f"the disk of {root} is full", "free some space, or forget old runs")
    return HostError("failed", f"the run folder could not be written in {root}: {error.strerror}")


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """The host's launch lock: of two consoles that launch at once, one waits and then sees the other."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise disk_error(os.path.dirname(path), error) from None
    try:
        deadline = time.monotonic() + LOCK_WITHIN_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HostError(
                        "failed",
                        "another console is launching on this host right now",
                        "try again in a moment",
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise HostError("failed", f"the launch lock cannot be had: {error.strerror}") from None
        yield
    finally:
        os.close(handle)


def check_free(server: str, port: int) -> None:
    """Raises HostError when the server runs already, or its port is taken or promised."""
    for row in _runlist.RunList().rows(tails=False):
        if row["left"] and row["server"] == server:
            raise HostError(
                "failed",
                f"run {row['run_id']} of {server} is over, but {row['left']} of its processes are left",
                "stop the server to remove them",
            )
        if not row["alive"]:
            continue
        said = f"run {row['run_id']} (pid {row['pid']}, started by {row['started_by'] or 'unknown'})"
        if row["server"] == server:
            raise HostError("failed", f"server {server} runs already: {said}", "stop it first")
        if row["port"] == port:
            raise HostError(
                "failed",
                f"port {port} belongs to server {row['server']}: {said}",
                "stop that server first",
            )
    taken = _sockets.who(port)
    if taken:
        raise HostError(
            "failed",
            f"port {port} is taken: {taken} listens on it",
            "stop that process, choose another port, or adopt it if it is the server",
        )


def fill(
    folder: str, run_id: str, argv: list[str], cwd: str, base: dict[str, str], request: dict[str, Any]
) -> str:
    """Writes all that the supervisor needs, the file with the secrets last. Returns the manager."""
    refusal = "not asked for" if request.get("systemd") is False else _systemd.unavailable(folder)
    manager = "setsid" if refusal else "systemd"
    record = {key: request[key] for key in ("server", "profile", "profile_digest", "profile_toml", "port")}
    record.update(
        schema=1,
        run_id=run_id,
        argv=argv,
        cwd=cwd,
        env=request["env"],
        secret_env=sorted(request["secret_env"]),
        started_at=time.time(),
        started_by=request["started_by"],
        console_version=request["console_version"],
        machine=os.uname().nodename,
        manager=manager,
        manager_note=refusal,
        unit="" if refusal else _systemd.unit_name(run_id),
    )
    _runfolder.write(folder, "run.json", json.dumps(record, indent=1))
    for name, text in request["files"].items():
        _runfolder.write(folder, name, text)
    mask = os.umask(0o077)
    os.umask(mask)
    # SPT_NOENV: SGLang renames its processes, which would otherwise overwrite the environment in /proc.
    marks = {_runfolder.MARKER: run_id, "SPT_NOENV": "1"}
    env = {**base, **request["env"], **request["secret_env"], **marks}
    plan = json.dumps({"argv": argv, "cwd": cwd, "env": env, "umask": mask})
    _runfolder.write(folder, "environment", plan, durable=False)  # a secret need not reach the disk
    return manager


def begin(folder: str, run_id: str, manager: str, cap_mib: int) -> None:
    """Starts the supervisor and waits until the server's identity is on disk."""
    script = os.path.join(folder, "supervisor.sh")
    command = ["/bin/sh", script, folder, sys.executable, str(cap_mib * 1024)]
    supervisor = 0
    if manager == "systemd":
        problem = _systemd.start(run_id, [*command, "forward"])
        if problem:
            raise HostError("failed", f"systemd did not start the run: {problem}", "see journalctl --user")
    else:
        supervisor = spawn(command)
    deadline = time.monotonic() + IDENTITY_WITHIN_S
    while not os.path.exists(os.path.join(folder, "pid")):
        ended = os.path.exists(os.path.join(folder, "exit"))
        if supervisor and os.waitpid(supervisor, os.WNOHANG)[0]:
            supervisor, ended = 0, True
        if ended or time.monotonic() > deadline:
            said = _runlist.tail(os.path.join(folder, "log"), 2000).strip()
            undo(folder, run_id, manager, supervisor)
            why = "its supervisor ended at once" if ended else f"no answer within {IDENTITY_WITHIN_S} s"
            raise HostError("failed", f"the run was not started: {said or why}")
        time.sleep(0.01)


def spawn(command: list[str]) -> int:
    """Starts a command in a session of its own, with nothing of ours open; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        os.closerange(3, 4096)
        os.chdir("/")
        os.execv(command[0], command)  # noqa: S606 (an argument list, no shell)
    finally:
        os._exit(127)


def undo(folder: str, run_id: str, manager: str, supervisor: int) -> None:
    """Removes what a failed start may have left: it has no identity on disk, only its mark and its parent."""
    if manager == "systemd":
        _systemd.kill(run_id)
    elif supervisor:
        os.kill(supervisor, signal.SIGKILL)  # our own child, not waited for yet: the pid is certain
        os.waitpid(supervisor, 0)
    tracker = _members.Tracker(run_id, None, None)
    for one in tracker.living():
        _procs.signal_exactly(one.pid, one.start, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, "environment"))
