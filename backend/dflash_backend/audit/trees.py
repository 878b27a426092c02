"""Sources of SGLang on this machine: a folder in any of its shapes, or a wheel; only ever read."""

from __future__ import annotations

import fnmatch
import json
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

from dflash_backend.audit.inputs import MAX_SOURCE_BYTES, SOURCE_PATTERNS, MemoryTree, SourceTree
from dflash_backend.core.errors import ConfigError
from dflash_backend.core.text import sanitise

MARK = "sglang/srt"
MAX_MEMBERS = 400_000


class FolderTree:
    """An installed or unpacked SGLang in a folder. ``root`` holds the package ``sglang``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """The folder."""
        return sanitise(str(self._root), multiline=False)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when there is none. Raises OSError when it cannot be read."""
        file = self._root / path
        try:
            found = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        if found.st_size > MAX_SOURCE_BYTES:
            raise OSError(f"{path} is {found.st_size / 1e6:.0f} MB: no source is so large")
        return file.read_bytes()

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder; empty when there is none. Raises OSError when it cannot be read."""
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()


def open_source(path: Path) -> SourceTree:
    """The tree at ``path``: site-packages, the package itself, a checkout, a virtual environment or a wheel.

    Raises ConfigError when there is nothing at ``path``, and when what is there is no SGLang, is not readable
    or is more than one.
    """
    shown = sanitise(str(path), multiline=False)
    try:
        if path.is_file():
            return _wheel(path, shown)
        if not path.is_dir():
            raise ConfigError("there is no such file or folder", where=shown)
        roots = _roots(path)
    except PermissionError:
        raise ConfigError("it may not be read by this user", where=shown) from None
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror or error}", where=shown) from None
    if not roots:
        raise ConfigError(
            "no SGLang is in there",
            where=shown,
            next_step="give site-packages, a virtual environment, a checkout or a wheel of SGLang",
        )
    if len(roots) > 1:
        names = ", ".join(sanitise(str(root), multiline=False) for root in roots[:4])
        raise ConfigError(
            f"more than one SGLang is in there: {names}", where=shown, next_step="name the one that is meant"
        )
    return FolderTree(roots[0])


def _roots(path: Path) -> list[Path]:
    if path.name == "sglang" and (path / "srt").is_dir():
        return [path.parent]
    if path.name == "srt" and path.parent.name == "sglang":
        return [path.parent.parent]
    if (path / MARK).is_dir():
        return [path]
    inside = [path / "python", *sorted(path.glob("lib*/python3*/site-packages")), *sorted(path.glob("*"))]
    found: dict[Path, Path] = {}
    for one in inside[:2000]:
        if (one / MARK).is_dir():
            found.setdefault(one.resolve(), one)
    return list(found.values()) or _editable(path)


def _editable(path: Path) -> list[Path]:
    """Where an editable install in site-packages points to."""
    found: dict[Path, Path] = {}
    places = [path, *sorted(path.glob("lib*/python3*/site-packages"))]
    for place in places:
        for pointer in sorted(place.glob("*sglang*.pth")):
            for line in pointer.read_text("utf-8", "replace").splitlines()[:50]:
                target = Path(line.strip())
                if line.strip() and target.is_absolute() and (target / MARK).is_dir():
                    found.setdefault(target.resolve(), target)
        for info in sorted(place.glob("sglang-*.dist-info/direct_url.json")):
            try:
                url = json.loads(info.read_bytes())["url"]
                target = Path(unquote(urlparse(url).path))
            except (ValueError, KeyError, TypeError):
                continue
            for one in (target, target / "python"):
                if (one / MARK).is_dir():
                    found.setdefault(one.resolve(), one)
    return list(found.values())


def _wheel(path: Path, shown: str) -> MemoryTree:
    """A wheel or another zip: only what the audit wants is unpacked, in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()[:MAX_MEMBERS]
            prefix = next(
                (m.filename[: m.filename.index(MARK + "/")] for m in members if f"{MARK}/" in m.filename),
                None,
            )
            if prefix is None:
                raise ConfigError("no SGLang is in this archive", where=shown)
            files: dict[str, bytes] = {}
            for member in members:
                name = member.filename[len(prefix) :]
                if not member.filename.startswith(prefix) or not _wanted(name):
                    continue
                if member.file_size <= MAX_SOURCE_BYTES:
                    files[name] = archive.read(member)
            return MemoryTree(shown, files)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ConfigError(
            f"this is no readable wheel: {sanitise(str(error), multiline=False, limit=200)}", where=shown
        ) from None


def _wanted(name: str) -> bool:
    if name.endswith(".dist-info/METADATA"):
        return True
    return any(
        fnmatch.fnmatchcase(name, pattern) and _same_depth(name, pattern) for pattern in SOURCE_PATTERNS
    )


def _same_depth(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/")
