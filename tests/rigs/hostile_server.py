"""A server program that does what no server should: ``HOSTILE`` in its environment says what.

Installed as ``sglang.launch_server`` of an interpreter of its own (see :func:`install`), it is launched by
the real command line over the real SSH server, as SGLang would be.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECRET = "hf_abcdefghijklmnopqrstuvwx"


def install(folder: Path, version: str = "0.5.14") -> Path:
    """A venv in ``folder`` whose SGLang is this program."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").touch()
    shutil.copy(__file__, site / "sglang" / "launch_server.py")
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder


def out_of_memory(port: int) -> None:
    """As SGLang on a GPU that is full."""
    print("[2026-01-31 12:00:00] Load weight begin. avail mem=78.00 GB", flush=True)
    sys.exit(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. "
        "GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free."
    )


def silent(port: int) -> None:
    """Never listens."""
    time.sleep(600)


def log(port: int) -> None:
    """Everything that a terminal or a markup parser could be tricked with, then silence."""
    out = sys.stdout.buffer
    out.write(b"\x1b]0;title\x07\x1b[2J [/markup] [bold]b[/bold] \xff\xfe\xc3\n")
    out.write(b"A" * 1_000_000 + b"\n")
    out.write(b"api_key=sk-secret-123456789 " + SECRET.encode() + b"\n")
    out.write(b"one\rtwo\r\x00nul \x9b31m \xe2\x80\xaertl\nlast line\n")
    out.flush()
    time.sleep(600)


def _serve(port: int, answer: Callable[[socket.socket], None]) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=50)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(answer, connection), daemon=True).start()


def _answer(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        with connection:
            answer(connection)
    except OSError:
        return


def garbage(port: int) -> None:
    """Answers every request with noise."""
    _serve(port, lambda connection: connection.sendall(os.urandom(5000)) if connection.recv(1000) else None)


def mute(port: int) -> None:
    """Accepts and says nothing."""
    _serve(port, lambda connection: time.sleep(600))


MODES: dict[str, Callable[[int], None]] = {
    "out-of-memory": out_of_memory,
    "silent": silent,
    "log": log,
    "garbage": garbage,
    "mute": mute,
}

if __name__ == "__main__":
    MODES[os.environ["HOSTILE"]](int(sys.argv[sys.argv.index("--port") + 1]))
