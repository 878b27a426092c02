"""The user's own systemd, where it answers and outlives the login: the one exact keeper of a run."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess

SAFE_PATH = re.compile(r"[A-Za-z0-9/._+@:,=-]+")
"""systemd expands ``$`` and cuts at spaces in a command; a path with other characters is not given to it."""
STOP_TIMEOUT_S = 90


def environment() -> dict[str, str]:
    """The environment with the address of the user's bus, which a non-interactive SSH session may lack."""
    env = dict(os.environ)
    runtime = f"/run/user/{os.geteuid()}"
    if not env.get("XDG_RUNTIME_DIR") and os.path.isdir(runtime):
        env["XDG_RUNTIME_DIR"] = runtime
    return env


def call(argv: list[str], timeout: float = 10.0) -> tuple[int, str]:
    """Exit status and output of a command that never asks; 124 when it hung, 127 when it is not there."""
    try:
        done = subprocess.run(
            argv,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {timeout} s"
    except OSError as error:
        return 127, error.strerror or "cannot be run"
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def unit_name(run_id: str) -> str:
    """The unit of a run."""
    return f"dflash-run-{run_id}.service"


def unavailable(folder: str) -> str:
    """Why a run in ``folder`` cannot be a systemd user service; empty when it can.

    Switches lingering on for this user when that needs no password: without it the user's services end
    with his last login.
    """
    if not shutil.which("systemctl") or not shutil.which("systemd-run"):
        return "no systemd here"
    if not SAFE_PATH.fullmatch(folder):
        return "the path of the run folder holds characters that systemd would interpret"
    status, state = call(["systemctl", "--user", "is-system-running"])
    if state not in ("running", "degraded", "starting", "initializing"):
        said = state.splitlines()[0][:120] if state else f"status {status}"
        return f"no systemd of this user answers ({said})"
    if not lingers():
        call(["loginctl", "--no-ask-password", "enable-linger"])
        if not lingers():
            return "lingering is off and cannot be switched on without a password (loginctl enable-linger)"
    return ""


def lingers() -> bool:
    """True when the user's services outlive his logins."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return False
    if os.path.exists(os.path.join("/var/lib/systemd/linger", user)):
        return True
    status, value = call(["loginctl", "show-user", str(os.geteuid()), "--property=Linger", "--value"])
    return status == 0 and value == "yes"


def start(run_id: str, command: list[str]) -> str:
    """Starts the supervisor as a transient service. Returns what went wrong, empty when nothing did."""
    status, output = call(
        [
            "systemd-run",
            "--user",
            "--quiet",
            "--unit=" + unit_name(run_id),
            "--description=dflash-console run " + run_id,
            "--property=KillMode=mixed",
            f"--property=TimeoutStopSec={STOP_TIMEOUT_S}",
            "--",
            *command,
        ],
        timeout=30.0,
    )
    return "" if status == 0 else output[:500] or f"systemd-run ended with status {status}"


def kill(run_id: str) -> None:
    """Removes a unit at once, whatever is in it."""
    call(["systemctl", "--user", "kill", "--signal=KILL", unit_name(run_id)])
    forget(run_id)


def forget(run_id: str) -> None:
    """Lets systemd forget a unit that failed; its exit code is in the run folder."""
    call(["systemctl", "--user", "reset-failed", unit_name(run_id)])


def step_aside(name: str) -> bool:
    """Moves this process out of the login's scope, so that the end of the login cannot end it."""
    status, _ = call(
        [
            "busctl",
            "--user",
            "call",
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
            "StartTransientUnit",
            "ssa(sv)a(sa(sv))",
            name + ".scope",
            "fail",
            "1",
            "PIDs",
            "au",
            "1",
            str(os.getpid()),
            "0",
        ]
    )
    return status == 0
