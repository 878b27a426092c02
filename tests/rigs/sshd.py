"""OpenSSH's own sshd on 127.0.0.1, with throw-away keys, as the current user.

``Sshd`` starts one in a temporary folder and knows how to misbehave: stop, kill, freeze, come back with
another host key. ``Sshd.client_home`` is a HOME with an ssh configuration whose alias ``name`` leads to it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dflash_backend.core.inventory import HostConfig

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
SSH_KEYGEN = shutil.which("ssh-keygen")


def missing() -> str:
    """Why this rig cannot run here; empty when it can."""
    if SSHD is None or SSH_KEYGEN is None:
        return "OpenSSH's sshd is not installed (Debian: apt install openssh-server)"
    return ""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def poll_until(
    condition: Callable[[], object], *, deadline: float = 15.0, what: str = "the condition"
) -> None:
    """Waits for ``condition`` to become true; raises AssertionError after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {deadline:g} s")
        time.sleep(0.02)


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """Generates a key pair without passphrase; returns the private file."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    assert SSH_KEYGEN is not None
    bits = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        [SSH_KEYGEN, "-q", "-t", kind, *bits, "-N", "", "-C", "rig", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


class Sshd:
    """One sshd. ``options`` are lines of sshd_config (``{"MaxSessions": "2"}``), stronger than the rig's."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "rig",
        options: Mapping[str, str] | None = None,
        jump: Sshd | None = None,
        trusted: bool = True,
        remote_env: Mapping[str, str] | None = None,
        key_kind: str = "ed25519",
        prefix: Sequence[str] = (),
    ) -> None:
        """``jump``: reached through that one. ``trusted``: its key is put into the client's known_hosts.

        ``remote_env`` is set for everything that runs on this host, beside a HOME of its own. ``prefix`` goes
        in front of sshd's command and must replace itself by it (a namespace to run in).
        """
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.jump = jump
        self.user = getpass.getuser()
        self.options = dict(options or {})
        self.remote_home = folder / "remote-home"
        self.remote_env = {"HOME": str(self.remote_home), **(remote_env or {})}
        self.log = folder / "sshd.log"
        self.prefix = list(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self._orphans: dict[int, str] = {}
        self._trusted = trusted
        folder.mkdir(parents=True, exist_ok=True)
        self.remote_home.mkdir(exist_ok=True)
        self.host_key = make_key(folder / "host_key", key_kind)
        if jump is None:
            self.client_home = folder / "client-home"
            (self.client_home / ".ssh").mkdir(parents=True, mode=0o700, exist_ok=True)
            self.user_key = make_key(self.client_home / ".ssh" / "id_rig")
        else:
            self.client_home = jump.client_home
            self.user_key = jump.user_key
        shutil.copy(self.user_key.with_name("id_rig.pub"), folder / "authorized_keys")
        self._write_client_files()

    # -- what the client needs ------------------------------------------------------------------------

    @property
    def ssh_config(self) -> Path:
        """The client's ssh configuration file."""
        return self.client_home / ".ssh" / "config"

    @property
    def known_hosts(self) -> Path:
        """The user's known_hosts file."""
        return self.client_home / ".ssh" / "known_hosts"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables under which a client process sees this rig and nothing of the real user."""
        home = str(self.client_home)
        return {
            "HOME": home,
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_CACHE_HOME": f"{home}/.cache",
            "SSH_AUTH_SOCK": "",
        }

    def host_config(self, **changes: object) -> HostConfig:
        """The inventory's entry for this host, by its alias in the ssh configuration."""
        values: dict[str, object] = {"name": self.name, "address": self.name, **changes}
        return HostConfig(**values)  # type: ignore[arg-type]

    def public_key(self) -> str:
        """``type base64`` of the host key that the next start shows."""
        kind, data = self.host_key.with_name("host_key.pub").read_text().split()[:2]
        return f"{kind} {data}"

    def fingerprint(self) -> str:
        """SHA256 fingerprint of the host key as ``ssh-keygen -lf`` prints it."""
        assert SSH_KEYGEN is not None
        out = subprocess.run(
            [SSH_KEYGEN, "-lf", str(self.host_key.with_name("host_key.pub"))],
            check=True,
            capture_output=True,
            text=True,
        )
        return out.stdout.split()[1]

    def known_hosts_line(self, name: str | None = None) -> str:
        """The line of a known_hosts file for this host."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.public_key()}\n"

    def trust(self) -> None:
        """Puts the present key into the user's known_hosts."""
        with self.known_hosts.open("a") as stream:
            stream.write(self.known_hosts_line())

    def _write_client_files(self) -> None:
        lines = [
            f"Host {self.name}",
            "  HostName 127.0.0.1",
            f"  Port {self.port}",
            f"  User {self.user}",
            f"  IdentityFile {self.user_key}",
            "  IdentitiesOnly yes",
        ]
        if self.jump is not None:
            lines.append(f"  ProxyJump {self.jump.name}")
        with self.ssh_config.open("a") as stream:
            stream.write("\n".join(lines) + "\n")
        self.known_hosts.touch()
        if self._trusted:
            self.trust()

    # -- the server -----------------------------------------------------------------------------------

    def _server_config(self) -> str:
        values = {
            "ListenAddress": "127.0.0.1",
            "Port": str(self.port),
            "HostKey": str(self.host_key),
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "PermitUserEnvironment": "no",
            "PrintMotd": "no",
            "PrintLastLog": "no",
            "LogLevel": "VERBOSE",
            "MaxStartups": "100:30:200",
            "SetEnv": " ".join(f'"{key}={value}"' for key, value in self.remote_env.items()),
            **self.options,
        }
        return "".join(f"{key} {value}\n" for key, value in values.items())

    def start(self) -> Sshd:
        """Starts the server and returns once it accepts connections."""
        assert self._process is None
        assert SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(self._server_config())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process

        def accepts() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"sshd ended with {process.returncode}: {self.log.read_text()}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    return probe.recv(4) == b"SSH-"
            except OSError:
                return False

        poll_until(accepts, what="sshd accepting connections")
        return self

    def pids(self) -> list[int]:
        """The listener and the sshd processes of its connections (not the commands that they run)."""
        return self._family(_children())

    def _family(self, children: dict[int, list[int]]) -> list[int]:
        if self._process is None:
            return []
        family = [self._process.pid]
        for pid in family:
            family.extend(child for child in children.get(pid, []) if _comm(child).startswith("sshd"))
        return family

    def commands(self) -> list[int]:
        """Processes that run on this host now: the children of its sessions, at any depth."""
        children = _children()
        servers = self._family(children)
        found: list[int] = []
        # A child without a name is gone by now: sshd has one that ends when somebody has logged in.
        queue = [c for pid in servers for c in children.get(pid, []) if c not in servers and _comm(c)]
        while queue:
            pid = queue.pop()
            found.append(pid)
            queue.extend(children.get(pid, []))
        return found

    def sessions(self) -> int:
        """Sessions opened and not closed yet, as the server's log tells it."""
        text = self.log.read_text(errors="replace")
        return text.count("Starting session:") - text.count("Close session:")

    def freeze(self) -> None:
        """Stops every process of the server (SIGSTOP): the peer is dead but the connection stays open."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Undoes freeze()."""
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 of the listener and of every connection. Commands of the sessions are left running."""
        self._note_orphans()
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._reap()

    def drop_connections(self) -> None:
        """kill -9 of the connections; the listener goes on. Commands of the sessions are left running."""
        self._note_orphans()
        for pid in self.pids()[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """Ends the server and its connections; does nothing when it is not running."""
        self.kill()

    def restart(self, *, new_host_key: bool = False, key_kind: str = "ed25519") -> Sshd:
        """Starts again on the same port, on request with another host key."""
        self.stop()
        if new_host_key:
            make_key(self.host_key, key_kind)
        return self.start()

    def _note_orphans(self) -> None:
        self._orphans.update((pid, _started_at(pid)) for pid in self.commands())

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=10)
            self._process = None

    def __enter__(self) -> Sshd:
        return self if self._process is not None else self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for pid, started in self._orphans.items():
            if started and _started_at(pid) == started:
                os.kill(pid, signal.SIGKILL)


def _started_at(pid: int) -> str:
    """Kernel start time of a process, which with the pid names it for good; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _children() -> dict[int, list[int]]:
    """Parent pid -> child pids, of every live process."""
    table: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                table.setdefault(int(fields[1]), []).append(int(entry.name))
    return table
