"""Looks at a host without changing anything: interpreter, SGLang, plugin, GPUs, disk, ports, services.

Request: ``{"ports": [port, …]}``. Answer: one entry per section; a section that could not be looked at is
``{"error": why}`` and costs none of the others. SGLang is found and read, never imported.
"""

from __future__ import annotations

import functools
import getpass
import importlib.util
import os
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from dflash_backend.hostside import _installed, _options, _procs, _runfolder, _sockets, _systemd

SMI_TIMEOUT_S = 15
SMI_FIELDS = ("index", "name", "driver_version", "memory.total", "memory.used")
PLUGIN_GROUP = "sglang.srt.plugins"
PLUGIN = "dflash_sglang"


def main(request: dict[str, Any], emit: Callable[[Any], None], stdin: BinaryIO) -> dict[str, Any]:
    """All sections."""
    add_user_site()
    return {
        "python": guarded(python),
        "sglang": guarded(sglang),
        "plugin": guarded(plugin),
        "gpus": guarded(gpus),
        "disk": guarded(disk),
        "services": guarded(services),
        "ports": {str(one): guarded(functools.partial(port, int(one))) for one in request.get("ports", [])},
    }


def guarded(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The section, or why it cannot be told: a strange host must not cost the rest of the answer."""
    try:
        return section()
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


def add_user_site() -> None:
    """Puts ~/.local back where a server finds it: this program runs isolated, servers do not."""
    folder = site.getusersitepackages()
    if sys.prefix != sys.base_prefix or folder in sys.path or not os.path.isdir(folder):
        return
    places = [
        place for place, item in enumerate(sys.path) if item.endswith(("site-packages", "dist-packages"))
    ]
    sys.path.insert(places[0] if places else len(sys.path), folder)


def python() -> dict[str, Any]:
    """The interpreter and the system it runs on."""
    facts: dict[str, Any] = dict(_installed.interpreter())
    facts["system"] = f"{platform.system()} {platform.release()}"
    facts["machine"] = platform.machine()
    facts["cores"] = os.cpu_count()
    try:
        facts["user"] = getpass.getuser()
    except (KeyError, OSError):
        facts["user"] = str(os.getuid())
    return facts


def sglang() -> dict[str, Any]:
    """Installed copies, the folder that an import would take, and the options that its source declares."""
    facts: dict[str, Any] = {"copies": _installed.distributions("sglang"), "package": "", "options": []}
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    if folders:
        facts["package"] = folders[0]
        facts["options"], facts["options_error"] = _options.read_options(folders[0])
    return facts


def plugin() -> dict[str, Any]:
    """Our plugin: the distributions that declare its entry point, and a setting that would keep it out."""
    points = _installed.entry_points(PLUGIN_GROUP)
    ours = [point for point in points if point["value"].split(":")[0].split(".")[0] == PLUGIN]
    copies = []
    for name in sorted({point["distribution"] for point in ours}):
        copies.extend(_installed.distributions(name))
    return {
        "copies": copies,
        "others": sorted(point["name"] for point in points if point not in ours),
        "allowed": os.environ.get("SGLANG_PLUGINS"),
    }


def gpus() -> dict[str, Any]:
    """GPUs and driver as nvidia-smi tells them; its own words when it fails."""
    if shutil.which("nvidia-smi") is None:
        other = [name for name in ("rocm-smi", "npu-smi", "xpu-smi") if shutil.which(name)]
        return {"state": "absent", "text": "", "other": other}
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(SMI_FIELDS), "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SMI_TIMEOUT_S,
            env=dict(os.environ, LC_ALL="C"),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"state": "hangs", "text": f"nvidia-smi gave no answer within {SMI_TIMEOUT_S} s"}
    except OSError as problem:
        return {"state": "failed", "text": f"nvidia-smi cannot be run: {problem.strerror}"}
    lines = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    if done.returncode != 0:
        return {"state": "failed", "text": (lines or [f"nvidia-smi ended with {done.returncode}"])[0]}
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return {
        "state": "ok",
        "gpus": [
            {
                "index": row[0],
                "name": row[1],
                "driver": row[2],
                "memory_total_mib": number(row[3]),
                "memory_used_mib": number(row[4]),
            }
            for row in rows
            if len(row) == len(SMI_FIELDS)
        ],
        "unread": [", ".join(row) for row in rows if len(row) != len(SMI_FIELDS)],
    }


def number(cell: str) -> float | None:
    """A figure of nvidia-smi; None for ``[N/A]`` and the like."""
    try:
        return float(cell)
    except ValueError:
        return None


def disk() -> dict[str, Any]:
    """Room where the runs are kept. The folder itself need not exist yet."""
    root = _runfolder.root()
    existing = root
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    room = os.statvfs(existing)
    return {
        "path": root,
        "free_mib": room.f_bavail * room.f_frsize / 2**20,
        "total_mib": room.f_blocks * room.f_frsize / 2**20,
        # Some file systems have no fixed number of files and say 0 of 0.
        "files_free": room.f_favail if room.f_files else None,
        "writable": os.access(existing, os.W_OK | os.X_OK),
    }


def port(wanted: int) -> dict[str, Any]:
    """Who listens on a port, and whether that is a run of ours."""
    sockets = _sockets.on_port(wanted)
    pids = _sockets.holders({one.inode for one in sockets}, _procs.processes()) if sockets else set()
    mark = _runfolder.MARKER.encode() + b"="
    runs = set()
    for pid in pids:
        for entry in (_procs.read_bytes(f"/proc/{pid}/environ", 1 << 22) or b"").split(b"\0"):
            if entry.startswith(mark):
                runs.add(entry[len(mark) :].decode("ascii", "replace"))
    return {"who": _sockets.who(wanted) if sockets else "", "runs": sorted(runs)}


def services() -> dict[str, Any]:
    """Whether this user's systemd could keep a run; nothing is switched on."""
    if not shutil.which("systemctl") or not shutil.which("systemd-run"):
        return {"systemd": "absent", "lingers": False}
    _, state = _systemd.call(["systemctl", "--user", "is-system-running"])
    answers = state in ("running", "degraded", "starting", "initializing")
    return {
        "systemd": "answers" if answers else "silent",
        "state": state[:200],
        "lingers": _systemd.lingers(),
    }
