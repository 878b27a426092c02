"""Puts one pure-Python wheel into this interpreter's site-packages, or takes it out, all or nothing.

What pip would write is written (files, RECORD, INSTALLER), so pip lists it and can remove it; pip itself is
not needed, and a virtual environment made by other tools often has none. Everything is staged in a folder
beside its place and moved there by renames; what was there before is put back when a step fails.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import shutil
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

from dflash_backend.hostside._runfolder import HostError

INSTALLER = "dflash-console"
_INSTALLERS = (".pyc", "/INSTALLER", "/REQUESTED", "/direct_url.json")
"""Files that installers and interpreters add without listing them."""


def site_packages() -> str:
    """The folder that pure Python packages of this interpreter live in."""
    return sysconfig.get_paths()["purelib"]


@contextlib.contextmanager
def changing(folder: str) -> Iterator[None]:
    """Holds ``folder`` against a second console. Raises HostError when it cannot be written, or is held."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise HostError("failed", f"{folder} cannot be opened: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HostError(
                "refused", f"another installation is changing {folder}", "try again in a moment"
            ) from None
        if not os.access(folder, os.W_OK):
            raise HostError(
                "refused",
                f"no permission to write in {folder}; nothing was changed",
                "connect as its owner, or set python for this host to a virtual environment of your own",
            )
        yield
    finally:
        os.close(descriptor)


def members(data: bytes) -> dict[str, bytes]:
    """The files of a wheel. Raises HostError for one that is damaged or would write outside its folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    except (zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise HostError("failed", f"the wheel is damaged: {error}") from None
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise HostError("failed", f"the wheel has a file outside its folder: {name}")
    record = _record(files)
    for name, digest, _ in csv.reader(io.StringIO(record)):
        if digest and "sha256=" + _digest(files.get(name, b"")) != digest:
            raise HostError("failed", f"the wheel is damaged: {name} is not what its RECORD says")
    return files


def put(folder: str, files: dict[str, bytes]) -> None:
    """Writes the wheel's files under ``folder``, replacing an older copy of the same folders whole."""
    info = _info_folder(files)
    record = _record(files)
    if f"{info}/INSTALLER," not in record:
        record = record.replace(info + "/RECORD,,", f"{info}/INSTALLER,,\n{info}/RECORD,,")
    written = dict(files)
    written[info + "/RECORD"] = record.encode()
    written[info + "/INSTALLER"] = (INSTALLER + "\n").encode()
    with _staged(folder) as stage:
        for name, data in written.items():
            path = os.path.join(stage, "new", *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        new = sorted(os.listdir(os.path.join(stage, "new")))
        replaced = sorted({*new, *_tops(folder, info.split("-")[0])})
        _swap(folder, stage, new, [name for name in replaced if os.path.lexists(os.path.join(folder, name))])


def take_out(folder: str, distribution: str) -> list[str]:
    """Removes what a distribution's RECORD lists, and its byte code. Returns the folders removed."""
    with _staged(folder) as stage:
        tops = _tops(folder, distribution)
        _swap(folder, stage, [], [name for name in tops if os.path.lexists(os.path.join(folder, name))])
    return tops


def recorded(info: str) -> dict[str, str]:
    """Path -> digest of every file in a RECORD; empty when there is none."""
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8", newline="") as stream:
            return {row[0]: row[1] for row in csv.reader(stream) if len(row) == 3}
    except OSError:
        return {}


def damage(folder: str, info: str) -> list[str]:
    """What is not as RECORD says: missing or changed files, in words."""
    found = []
    files = recorded(os.path.join(folder, info))
    if not files:
        return [info + " has no RECORD"]
    for name, digest in sorted(files.items()):
        if not digest:
            continue
        try:
            with open(os.path.join(folder, *name.split("/")), "rb") as stream:
                same = "sha256=" + _digest(stream.read()) == digest
        except OSError:
            found.append(name + " is missing")
            continue
        if not same:
            found.append(name + " was changed")
    return found


def _swap(folder: str, stage: str, new: list[str], old: list[str]) -> None:
    """Moves ``old`` entries of ``folder`` away and ``new`` ones in; undoes all of it when one step fails."""
    aside = os.path.join(stage, "old")
    os.mkdir(aside)
    done: list[tuple[str, str]] = []
    try:
        for name in old:
            done.append(_move(os.path.join(folder, name), os.path.join(aside, name)))
        for name in new:
            done.append(_move(os.path.join(stage, "new", name), os.path.join(folder, name)))
    except OSError:
        for source, target in reversed(done):
            os.rename(target, source)
        raise


def _move(source: str, target: str) -> tuple[str, str]:
    os.rename(source, target)
    return source, target


@contextlib.contextmanager
def _staged(folder: str) -> Iterator[str]:
    """A scratch folder on the same file system, gone afterwards; OSErrors become plain messages."""
    stage = ""
    try:
        stage = tempfile.mkdtemp(prefix=".dflash-", dir=folder)
        yield stage
    except OSError as error:
        raise HostError("failed", _said(error, folder) + "; nothing was changed", _advice(error)) from None
    finally:
        if stage:
            shutil.rmtree(stage, ignore_errors=True)


def _said(error: OSError, folder: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for {folder}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write in {folder}"
    return f"{error.filename or folder}: {error.strerror}"


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there (the plugin needs less than 1 MiB), then try again"
    return ""


def infos(folder: str, distribution: str) -> list[str]:
    """The .dist-info folders of a distribution, of whatever version."""
    prefix = distribution.replace("-", "_").lower() + "_"
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".dist-info") and name.lower().replace("-", "_").startswith(prefix):
            found.append(name)
    return found


def _tops(folder: str, distribution: str) -> list[str]:
    """The folders that a distribution owns here. Raises HostError when they hold other files too."""
    tops = set()
    strangers = []
    for info in infos(folder, distribution):
        mine = recorded(os.path.join(folder, info))
        for top in {name.split("/")[0] for name in mine} | {info}:
            tops.add(top)
            strangers += _strangers(folder, top, set(mine))
    if strangers:
        shown = ", ".join(sorted(strangers)[:3])
        raise HostError(
            "refused",
            f"{len(strangers)} files were added beside the plugin's ({shown}); nothing was changed",
            f"move them out of {folder}, then try again",
        )
    return sorted(tops)


def _strangers(folder: str, top: str, mine: set[str]) -> list[str]:
    """Files under ``top`` that are in no RECORD and are no byte code."""
    found: list[str] = []
    for path, _, names in os.walk(os.path.join(folder, top)):
        if os.path.basename(path) == "__pycache__":
            continue
        for name in names:
            relative = os.path.relpath(os.path.join(path, name), folder).replace(os.sep, "/")
            if relative not in mine and not relative.endswith(_INSTALLERS):
                found.append(relative)
    return found


def _info_folder(files: dict[str, bytes]) -> str:
    return next(name.split("/")[0] for name in files if name.endswith(".dist-info/RECORD"))


def _record(files: dict[str, bytes]) -> str:
    for name, data in files.items():
        if name.endswith(".dist-info/RECORD"):
            return data.decode("utf-8")
    raise HostError("failed", "the wheel is damaged: it has no RECORD")


def _digest(data: Any) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
