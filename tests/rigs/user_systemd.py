"""A real ``systemd --user`` on a machine that was not booted with it: in a mount namespace with its own /run.

Needs root and a cgroup tree that can be written. What runs in the namespace (``prefix``) sees a user manager
that answers, lingering switched on, and the rest of the machine as it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from rigs.sshd import poll_until

SYSTEMD = "/lib/systemd/systemd"
LINGER = "/var/lib/systemd/linger"

_SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/sshd /run/user/0
chmod 700 /run/user/0
mount -t tmpfs tmpfs /var/lib/systemd
mkdir -p {linger}
[ -z "$2" ] || touch {linger}/root
for tree in $1; do
    mkdir -p "$tree"
    echo $$ >"$tree/cgroup.procs"
done
export XDG_RUNTIME_DIR=/run/user/0
exec {systemd} --user --log-target=console
"""


def trees() -> list[Path]:
    """The cgroup roots that systemd keeps its units under: two in the hybrid layout."""
    root = Path("/sys/fs/cgroup")
    known = [root / "systemd", root / "unified"] if (root / "systemd").is_dir() else [root]
    return [tree for tree in known if os.access(tree / "cgroup.procs", os.W_OK)]


def missing() -> str:
    """Why this rig cannot run here; empty when it can."""
    if os.geteuid() != 0:
        return "a systemd of one's own in a mount namespace needs root"
    if not os.path.exists(SYSTEMD) or not shutil.which("systemd-run") or not shutil.which("busctl"):
        return "systemd is not installed"
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return "unshare and nsenter are not installed (util-linux)"
    if not trees():
        return "no cgroup tree that can be written"
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True)
    return "" if probe.returncode == 0 else "mount namespaces are not allowed here"


class UserSystemd:
    """Started by entering the context; everything that it started ends with it. ``linger=False``: off."""

    def __init__(self, folder: Path, *, linger: bool = True) -> None:
        self.log = folder / "systemd.log"
        self._linger = linger
        name = f"rig-{os.getpid()}-{secrets.token_hex(4)}"  # systemd wants the same place in every tree
        self._cgroups = [tree / name for tree in trees()]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def prefix(self) -> list[str]:
        """Put in front of a command to run it in the namespace."""
        assert self._process is not None
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "--"]

    def ctl(self, *arguments: str) -> str:
        """What ``systemctl --user`` says."""
        done = subprocess.run(
            [*self.prefix, "systemctl", "--user", *arguments],
            env={**os.environ, "XDG_RUNTIME_DIR": "/run/user/0"},
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def __enter__(self) -> UserSystemd:
        script = _SCRIPT.format(linger=LINGER, systemd=SYSTEMD)
        folders = " ".join(map(str, self._cgroups))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", folders, "1" if self._linger else ""],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"systemd ended with {process.returncode}: {self.log.read_text()}")
            return self.ctl("is-system-running") in ("running", "degraded")

        poll_until(answers, what="systemd --user answering")
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        poll_until(lambda: not self._left(), what="the cgroups being empty")

    def _left(self) -> list[Path]:
        return [cgroup for cgroup in self._cgroups if not removed(cgroup)]


def removed(cgroup: Path) -> bool:
    """Kills what is left in a cgroup and removes it; False when it has to be tried again."""
    if not cgroup.is_dir():
        return True
    inner = [folder for folder in cgroup.iterdir() if folder.is_dir()]
    if [folder for folder in inner if not removed(folder)]:
        return False
    for pid in (cgroup / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True
