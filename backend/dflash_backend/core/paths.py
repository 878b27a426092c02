"""XDG folders and safe files: 0700 folders, 0600 files, atomic writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

APP = "dflash-console"


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification tells to ignore relative values.
    root = Path(value) if value.startswith("/") else Path.home() / fallback
    return root / APP


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/dflash-console``."""
    return _base("XDG_CONFIG_HOME", ".config")


def state_dir() -> Path:
    """``$XDG_STATE_HOME/dflash-console``: logs, the action log, known hosts."""
    return _base("XDG_STATE_HOME", ".local/state")


def data_dir() -> Path:
    """``$XDG_DATA_HOME/dflash-console``: benchmark results, recordings."""
    return _base("XDG_DATA_HOME", ".local/share")


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/dflash-console``."""
    return _base("XDG_CACHE_HOME", ".cache")


def ensure_dir(path: Path) -> Path:
    """Creates ``path`` with mode 0700 (parents as well) and returns it."""
    missing = []
    probe = path
    while not probe.exists():
        missing.append(probe)
        probe = probe.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    return path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replaces ``path`` by ``data`` in one step, mode 0600; a crash leaves the old or the new file.

    Raises OSError as the file system reports it; a temporary file is never left behind.
    """
    ensure_dir(path.parent)
    payload = data.encode() if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def append_line(path: Path, line: str) -> None:
    """Appends one line to a 0600 file and forces it to disk: for logs that must survive a crash."""
    ensure_dir(path.parent)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line.rstrip("\n").encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
