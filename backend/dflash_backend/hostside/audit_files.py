"""Brings what the window audit reads: configs, SGLang's sources, the start of the log. Changes nothing.

SGLang is not imported and not run; its folder is found from the files of the interpreter that runs the server
(its command line tells which). Contents travel as base64, compressed together.

Request: ``{"pid", "port", "argv", "python", "env", "cwd", "drafter": path or id, "target", "log": path,
"patterns"}``; all may be null: what ``argv`` or the process (``pid``, or who listens on ``port``) says stands
in. ``python`` counts where neither tells one. Each part of the answer is there, or says under ``problem`` why
not.
"""

from __future__ import annotations

import base64
import fnmatch
import glob
import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from dflash_backend.hostside import _listening, _procs, _sockets
from dflash_backend.hostside._compute_caps import compute_caps
from dflash_backend.hostside._model_config import find_config
from dflash_backend.hostside._search_path import Interpreter, SearchPath, read_bounded, said, small_text

MAX_FILE = 4_000_000
MAX_ALL = 24_000_000
MAX_FILES = 400
LOG_HEAD = 256 << 10
LOG_SEARCHED = 32 << 20
LOG_LINES = 200
_MARKS = (b"draft runner", b"dflash-sglang:", b"server_args=")
"""What makes a line behind the head of the log worth bringing: eight ranks and NCCL can say a lot before."""
_ENV = (
    "HOME PATH VIRTUAL_ENV PYTHONPATH PYTHONNOUSERSITE PYTHONUSERBASE XDG_CACHE_HOME HF_HOME HF_HUB_CACHE "
    "HUGGINGFACE_HUB_CACHE SGLANG_PLUGINS SGLANG_USE_MODELSCOPE DFLASH_SGLANG_WINDOWS"
).split()
"""The only variables that are looked at: the rest of an environment may hold secrets."""
_MODELS = (
    (
        "drafter",
        ("--speculative-draft-model-path", "--speculative-draft-model"),
        ("--speculative-draft-model-revision",),
    ),
    ("target", ("--model-path", "--model"), ("--revision",)),
)
"""Part of the answer, the options that name the model, and the one that names its revision."""
_CONTAINER = "the server runs in a container: its files cannot be read from the host"
_VERSION = re.compile(r"""(?m)^(?:__version__|version)\b[^=\n]*=(?:\s*\w+\s*=)?\s*['"]([^'"\n]{1,80})['"]""")
_PLUGIN_GROUP = "[sglang.srt.plugins]"


def main(request: dict[str, Any], emit: Callable[[object], None], stdin: BinaryIO) -> dict[str, Any]:
    """See the module's text."""
    pid = request.get("pid") or _listener(request.get("port"))
    process, problems = _process(pid)
    argv = request.get("argv") or process.get("argv") or []
    env = {name: os.environ[name] for name in _ENV if name in os.environ}
    env.update((k, str(v)) for k, v in (request.get("env") or {}).items() if k in _ENV)
    env.update(process.get("env", {}))
    cwd = request.get("cwd") or process.get("cwd") or env.get("HOME") or "/"
    guessed = not argv
    python = argv[0] if argv else request.get("python") or "python3"
    interpreter = Interpreter(python, env, cwd)
    interpreter.problems += problems
    path = SearchPath(interpreter, argv)
    answer: dict[str, Any] = {"process": _told(process)}
    if pid is not None and _in_container(pid, interpreter.path or "/"):
        answer.update(python={}, source={"problem": _CONTAINER})
        answer.update((name, {"problem": _CONTAINER}) for name, _, _ in _MODELS)
        return answer
    answer.update(
        python={"asked": python, "path": interpreter.path, "guessed": guessed},
        env={k: v for k, v in env.items() if k in ("SGLANG_PLUGINS", "DFLASH_SGLANG_WINDOWS")},
        compute_caps=compute_caps(),
        source=_source(interpreter, path, request.get("patterns") or []),
    )
    for name, options, revision in _MODELS:
        wanted = request.get(name) or _option(argv, options)
        if wanted:
            found = find_config(wanted, _option(argv, revision) or "", env, cwd, path)
            found["model"] = wanted
            if "data" in found:
                found["data"] = base64.b64encode(found["data"]).decode()
            answer[name] = found
    if request.get("log"):
        answer["log"] = _log(request["log"])
    answer["problems"] = path.problems[:20]
    return answer


def _option(argv: list[str], names: Sequence[str]) -> str | None:
    """The value of an option, ``--name value`` or ``--name=value``; the last one given counts."""
    found = None
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else (argv[place + 1] if place + 1 < len(argv) else None)
    return found


def _listener(port: int | None) -> int | None:
    """The process that listens on a port, the eldest one; None where it cannot be seen."""
    inode = _listening.listening().get(port) if port else None
    if inode is None:
        return None
    return min(_sockets.holders({inode}, _procs.processes()), default=None)


def _in_container(pid: int, path: str) -> bool:
    """True when the process sees another file under ``path`` than we do."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/root{path}"), os.stat(path)
    except PermissionError:
        return False
    except OSError:
        return True
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def _told(process: dict[str, Any]) -> dict[str, Any]:
    return {key: process[key] for key in ("argv", "started_at") if key in process}


def _process(pid: int | None) -> tuple[dict[str, Any], list[str]]:
    """What /proc says of a process; other users' processes keep their environment to themselves."""
    if not pid:
        return {}, []
    base = f"/proc/{pid}/"
    found: dict[str, Any] = {}
    try:
        with open(base + "cmdline", "rb") as stream:
            words = stream.read(1 << 20).split(b"\0")
        found["argv"] = [word.decode("utf-8", "replace") for word in words[:-1]]
        with open(base + "environ", "rb") as stream:
            pairs = [one.partition(b"=") for one in stream.read(1 << 20).split(b"\0")]
        names = {name.encode() for name in _ENV}
        found["env"] = {k.decode(): v.decode("utf-8", "replace") for k, _, v in pairs if k in names}
        found["cwd"] = os.readlink(base + "cwd")
        found["started_at"] = _started_at(pid)
    except OSError as error:
        return found, [f"process {pid}: {error.strerror}"]
    return found, []


def _started_at(pid: int) -> float | None:
    """Seconds since the epoch on the host's clock."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
        with open("/proc/stat") as stream:
            booted = next(int(line.split()[1]) for line in stream if line.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _source(interpreter: Interpreter, path: SearchPath, patterns: list[str]) -> dict[str, Any]:
    copies = path.copies("sglang")
    for copy in copies:
        copy["version"] = _version(copy, path)
    answer: dict[str, Any] = {
        "installations": [
            {
                "where": copy.get("archive") or copy["folder"],
                "version": copy["version"],
                "kind": "archive" if "archive" in copy else "folder",
            }
            for copy in copies[:10]
        ]
    }
    if not copies:
        answer["problem"] = _no_sglang(interpreter, path)
        return answer
    first = copies[0]
    files, problems, newest = _files(first, patterns)
    files.update(_metadata(path))
    packed = json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()})
    answer.update(
        where=first.get("archive") or first["folder"],
        newest=newest,
        files=base64.b64encode(zlib.compress(packed.encode(), 6)).decode(),
        count=len(files),
        unread=problems[:20],
    )
    return answer


def _no_sglang(interpreter: Interpreter, path: SearchPath) -> str:
    if not interpreter.path:
        return f"there is no interpreter {interpreter.asked} on the host"
    zipped = [
        os.path.join(folder, name)
        for folder in path.site
        for name in _listed(folder)
        if name.startswith("sglang-") and name.endswith((".whl", ".zip", ".egg"))
    ]
    if zipped:
        return f"{zipped[0]} is an archive that was never installed: nothing can import it"
    if path.problems:
        return "no SGLang was found: " + "; ".join(path.problems[:3])
    where = ", ".join(path.site[:3]) or "no site-packages under " + interpreter.prefix
    return f"SGLang is not installed in {interpreter.path} (looked in {where})"


def _files(copy: dict[str, Any], patterns: list[str]) -> tuple[dict[str, bytes], list[str], float | None]:
    """(path relative to what holds ``sglang`` -> bytes, what could not be read, the newest change)."""
    if "archive" in copy:
        return _zipped(copy["archive"], patterns)
    files: dict[str, bytes] = {}
    problems: list[str] = []
    newest: float | None = None
    room = MAX_ALL
    for name in _matching(copy["folder"], patterns):
        place = os.path.join(copy["folder"], name)
        try:
            data = read_bounded(place, min(MAX_FILE, room))
            changed = os.stat(place).st_mtime
        except OSError as error:
            problems.append(said(place, error))
            continue
        room -= len(data)
        files["sglang/" + name] = data
        newest = changed if newest is None else max(newest, changed)
    return files, problems, newest


def _matching(folder: str, patterns: list[str]) -> list[str]:
    found = set()
    for pattern in patterns:
        head, _, rest = pattern.partition("/")
        if head == "sglang" and ".." not in rest.split("/"):
            for place in glob.glob(os.path.join(glob.escape(folder), rest)):
                found.add(os.path.relpath(place, folder).replace(os.sep, "/"))
    return sorted(found)[:MAX_FILES]


def _zipped(path: str, patterns: list[str]) -> tuple[dict[str, bytes], list[str], float | None]:
    files: dict[str, bytes] = {}
    problems: list[str] = []
    room = MAX_ALL
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                depth = info.filename.count("/")
                if not any(
                    fnmatch.fnmatchcase(info.filename, one) and one.count("/") == depth for one in patterns
                ):
                    continue
                if info.file_size > min(MAX_FILE, room):
                    problems.append(f"{info.filename} in {path} is too large")
                    continue
                with archive.open(info) as stream:
                    files[info.filename] = stream.read(min(MAX_FILE, room))
                room -= len(files[info.filename])
        newest: float | None = os.stat(path).st_mtime
    except (OSError, zipfile.BadZipFile, RuntimeError, EOFError, zlib.error) as error:
        return files, [*problems, f"{path}: {error}"], None
    return files, problems, newest


def _metadata(path: SearchPath) -> dict[str, bytes]:
    """dist-info of SGLang and of everything that plugs into it."""
    files: dict[str, bytes] = {}
    for entry in path.entries:
        for name in _listed(entry):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            low = name.lower().replace("-", "_")
            points = os.path.join(entry, name, "entry_points.txt")
            plugs = os.path.isfile(points) and _PLUGIN_GROUP in _text(points)
            if plugs or low.startswith(("sglang_", "dflash_sglang_")):
                for part in ("METADATA", "entry_points.txt"):
                    text = _text(os.path.join(entry, name, part))
                    if text or part == "METADATA":
                        files.setdefault(name + "/" + part, text.encode())
    return files


def _version(copy: Mapping[str, Any], path: SearchPath) -> str | None:
    if "folder" in copy:
        for name in ("_version.py", "version.py"):
            found = _VERSION.search(_text(os.path.join(copy["folder"], name)))
            if found:
                return found.group(1)
    for folder in (copy["beside"], *path.site):
        for name in _listed(folder):
            match = re.fullmatch(r"sglang-([\w.+!]+)\.dist-info", name)
            if match:
                return match.group(1)
    return None


def _log(path: str) -> dict[str, Any]:
    """The first part of a log, and lines behind it that tell how the drafter was set up."""
    # A rotated log has its beginning in the older file.
    place = path + ".1" if os.path.isfile(path + ".1") else path
    if os.path.exists(place) and not os.path.isfile(place):
        return {"problem": place + ": not a regular file"}
    try:
        with open(place, "rb") as stream:
            head = stream.read(LOG_HEAD)
            lines: list[bytes] = []
            left = LOG_SEARCHED
            while left > 0 and len(lines) < LOG_LINES:
                line = stream.readline(1 << 20)
                if not line:
                    break
                left -= len(line)
                if any(mark in line for mark in _MARKS):
                    lines.append(line[:65536])
    except OSError as error:
        return {"problem": said(place, error)}
    data = head + b"\n" + b"".join(lines)
    return {"where": place, "data": base64.b64encode(zlib.compress(data, 6)).decode()}


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        return small_text(path)
    except OSError:
        return ""
