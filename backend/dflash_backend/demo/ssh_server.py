"""A small real SSH server inside this process, for the demo: loopback only, throw-away keys, this user.

It executes commands as this user, so it listens on 127.0.0.1 alone and admits one key that was made for
this demo and never leaves its 0700 folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_backend.core.paths import ensure_dir, write_atomic

if TYPE_CHECKING:
    import asyncssh

_CHUNK = 65536


class DemoSshServer:
    """SSH on 127.0.0.1 with command execution and forwards to loopback ports, nothing else.

    ``environment`` is what every command sees. ``folder`` receives the client key and the known_hosts line.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = ensure_dir(folder)
        self._environment = dict(environment)
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.port = 0
        self.client_key = folder / "id_ed25519"
        self.host_key_line = ""

    async def start(self) -> None:
        """Makes the keys and listens on a free port. Raises OSError when there is none."""
        import asyncssh

        host_key = asyncssh.generate_private_key("ssh-ed25519", comment="dflash-console demo host")
        client_key = asyncssh.generate_private_key("ssh-ed25519", comment="dflash-console demo client")
        write_atomic(self.client_key, client_key.export_private_key())
        authorised = asyncssh.import_authorized_keys(client_key.export_public_key().decode())

        class Server(asyncssh.SSHServer):
            def public_key_auth_supported(self) -> bool:
                return True

            def password_auth_supported(self) -> bool:
                return False

            def begin_auth(self, username: str) -> bool:
                return True

            def connection_requested(
                self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
            ) -> bool:
                return dest_host in ("127.0.0.1", "localhost", "::1")

        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[host_key],
            authorized_client_keys=authorised,
            process_factory=self._serve,
            encoding=None,
            allow_scp=False,
            agent_forwarding=False,
            x11_forwarding=False,
        )
        self.port = self._acceptor.get_port()
        public = host_key.export_public_key().decode().strip()
        self.host_key_line = f"[127.0.0.1]:{self.port} {' '.join(public.split()[:2])}"

    async def close(self) -> None:
        """Stops listening and drops the connections; commands of theirs get SIGHUP and end."""
        if self._acceptor is not None:
            self._acceptor.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._acceptor.wait_closed(), 5)
            self._acceptor = None

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command
        if command is None:
            process.stderr.write(b"this demo host runs commands only, no login shell\n")
            process.exit(1)
            return
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        )
        feeder = asyncio.create_task(_feed(process, child))
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            status = await child.wait()
            if status < 0:
                process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                process.exit(status)
        except (BrokenPipeError, ConnectionError, asyncio.CancelledError):
            _signal_group(child, signal.SIGHUP)
            raise
        finally:
            feeder.cancel()
            if child.returncode is None:
                _signal_group(child, signal.SIGHUP)


async def _copy(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    """Client to command: bytes, end of file and signals."""
    import asyncssh

    assert child.stdin is not None
    while True:
        try:
            chunk = await process.stdin.read(_CHUNK)
        except asyncssh.SignalReceived as received:
            with contextlib.suppress(AttributeError):
                _signal_group(child, getattr(signal, f"SIG{received.signal}"))
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        except ConnectionError:
            _signal_group(child, signal.SIGHUP)
            return
        if not chunk:
            break
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(chunk)
            await child.stdin.drain()
    child.stdin.close()
    # A client that goes away closes the channel; what it left running is hung up, as sshd does.
    await process.wait_closed()
    _signal_group(child, signal.SIGHUP)


def _signal_group(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
