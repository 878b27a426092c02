"""The SGLang plugin in this interpreter: status, install, uninstall.

Request: ``{"op", "distribution", "package", "entry_point", "env"}`` and, to install, ``{"wheel": {"version",
"sha256", "data": base64}, "supported": [releases]}``. ``env`` is what servers are launched with on top of
this environment. The answer is the status after the operation, with ``"changed"``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, BinaryIO

from dflash_backend.hostside import _installed, _site
from dflash_backend.hostside._runfolder import HostError

GROUP = "sglang.srt.plugins"
_NEEDS_PYTHON = (3, 10)

# What SGLang does first in each of its processes, without SGLang: list the entry points, load the one.
_FIND = """
import importlib.metadata, json, sys
group, wanted, package = sys.argv[1:]
named = [point for point in importlib.metadata.entry_points(group=group) if point.name == wanted]
answer = {"named": len(named), "loads": False, "heavy": False, "error": "", "version": "", "where": ""}
try:
    for point in named:
        point.load()
        answer["loads"] = True
    module = sys.modules.get(package)
    if module is not None:
        answer["version"], answer["where"] = module.__version__, module.__file__
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}"
answer["heavy"] = "torch" in sys.modules or "sglang" in sys.modules
print(json.dumps(answer))
"""


def status(request: dict[str, Any]) -> dict[str, Any]:
    """What is installed, whether it is intact, and whether SGLang will load it."""
    folder = _site.site_packages()
    copies = _installed.distributions(request["distribution"])
    for copy in copies:
        copy["damage"] = [] if copy["editable"] else _damage(copy["where"], request["distribution"])
    others = [
        point
        for point in _installed.entry_points(GROUP)
        if point["value"].split(":")[0].split(".")[0] == request["package"]
        and point["distribution"].lower().replace("_", "-") != request["distribution"]
    ]
    environment = dict(os.environ, **request.get("env", {}))
    return {
        "python": _installed.interpreter(),
        "folder": folder,
        "sglang": _installed.distributions("sglang"),
        "copies": copies,
        "others": others,
        "found": _found(request, environment) if copies else None,
        "allowed": environment.get("SGLANG_PLUGINS") or None,
        "switch": environment.get("DFLASH_SGLANG_WINDOWS") or None,
    }


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Installs the wheel sent along, unless this very wheel is there and intact."""
    before = status(request)
    _check_host(before, request["supported"])
    data = _wheel_data(request["wheel"])
    files = _site.members(data)
    folder = before["folder"]
    _check_copies(before, folder)
    _check_owner(before, folder, request["package"])
    current = [copy for copy in before["copies"] if os.path.samefile(copy["where"], folder)]
    if current and not current[0]["damage"] and _same(folder, files):
        return dict(before, changed=False)
    with _site.changing(folder):
        kept = _kept(folder, request["distribution"])
        _site.put(folder, files)
        after = status(request)
        problem = _unproven(after, request["wheel"]["version"])
        if problem:
            _undo(folder, request["distribution"], kept, problem)
    return dict(after, changed=True)


def uninstall(request: dict[str, Any]) -> dict[str, Any]:
    """Removes the copy in this interpreter's own folder."""
    before = status(request)
    folder = before["folder"]
    mine = [copy for copy in before["copies"] if os.path.samefile(copy["where"], folder)]
    for copy in before["copies"]:
        if copy["editable"]:
            raise HostError(
                "refused",
                f"the plugin is installed in editable mode from {copy['where']}",
                f"{sys.executable} -m pip uninstall {request['distribution']}",
            )
    if not mine:
        return dict(before, changed=False)
    with _site.changing(folder):
        _site.take_out(folder, request["distribution"])
    return dict(status(request), changed=True)


def _undo(folder: str, distribution: str, kept: dict[str, bytes], problem: str) -> None:
    """Takes out what was put in, puts back what was there, and says so. Always raises."""
    try:
        _site.take_out(folder, distribution)
        if kept:
            _site.put(folder, kept)
    except HostError as error:
        raise HostError(
            "unrestored", f"{problem}; undoing failed: {error}", "look at plugin status"
        ) from None
    raise HostError("failed", problem + "; the installation was undone", "look at plugin status")


def _check_host(seen: dict[str, Any], supported: list[str]) -> None:
    python = seen["python"]
    if sys.version_info[:2] < _NEEDS_PYTHON:
        raise HostError(
            "refused",
            f"{python['path']} is Python {python['version']}; SGLang and its plugins need 3.10 or newer",
            "set python for this host to the virtual environment that SGLang is installed in",
        )
    if not seen["sglang"]:
        raise HostError(
            "refused",
            f"SGLang is not installed in {python['prefix']}",
            "set python for this host to the virtual environment that SGLang is installed in",
        )
    version = seen["sglang"][0]["version"]
    if version not in supported:
        raise HostError(
            "refused",
            f"the plugin does not know SGLang {version}; it knows {supported[0]} to {supported[-1]}",
            "SGLang before 0.5.11 has no plugins; for a newer one, use a newer console",
        )
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if not python["venv"] and os.path.exists(marker):
        raise HostError(
            "refused",
            f"the operating system manages {seen['folder']}",
            "set python for this host to a virtual environment that has SGLang",
        )


def _wheel_data(wheel: dict[str, Any]) -> bytes:
    try:
        data = base64.b64decode(wheel["data"], validate=True)
    except (binascii.Error, ValueError):
        data = b""
    digest = hashlib.sha256(data).hexdigest()
    if digest != wheel["sha256"]:
        raise HostError(
            "failed", f"the wheel was damaged on its way: its hash is {digest[:16]}…", "try again"
        )
    return data


def _check_copies(seen: dict[str, Any], folder: str) -> None:
    elsewhere = [copy["where"] for copy in seen["copies"] if not os.path.samefile(copy["where"], folder)]
    elsewhere += [point["distribution"] for point in seen["others"]]
    if elsewhere:
        raise HostError(
            "refused",
            "the plugin is installed a second time: " + ", ".join(elsewhere),
            "uninstall that copy first; two would load by chance",
        )
    if any(copy["editable"] for copy in seen["copies"]):
        raise HostError(
            "refused", "the plugin is installed in editable mode", "uninstall that first, with pip"
        )


def _check_owner(seen: dict[str, Any], folder: str, package: str) -> None:
    """The console's own distribution carries the package too: its files must not be taken from it."""
    if not seen["copies"] and os.path.lexists(os.path.join(folder, package)):
        raise HostError(
            "refused",
            f"{os.path.join(folder, package)} is there already and belongs to something else "
            "(the console itself, if it is installed in this environment)",
            "install the console in an environment of its own, or remove that folder",
        )


def _same(folder: str, files: dict[str, bytes]) -> bool:
    for name, data in files.items():
        if name.endswith("/RECORD"):
            continue
        try:
            with open(os.path.join(folder, *name.split("/")), "rb") as stream:
                if stream.read() != data:
                    return False
        except OSError:
            return False
    return True


def _kept(folder: str, distribution: str) -> dict[str, bytes]:
    """The files of the copy that is there now, to put back; empty when there is none, or it is damaged."""
    kept = {}
    for info in _site.infos(folder, distribution):
        for name in _site.recorded(os.path.join(folder, info)):
            if name.endswith("/INSTALLER"):
                continue
            try:
                with open(os.path.join(folder, *name.split("/")), "rb") as stream:
                    kept[name] = stream.read()
            except OSError:
                return {}
    return kept


def _damage(folder: str, distribution: str) -> list[str]:
    found = []
    for info in _site.infos(folder, distribution):
        found += _site.damage(folder, info)
    return found


def _found(request: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """What a new interpreter finds, as a server's would."""
    argv = [sys.executable, "-c", _FIND, GROUP, request["entry_point"], request["package"]]
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=60,
        )
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
        return answer if isinstance(answer, dict) else {}
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        return {"named": 0, "loads": False, "error": f"{type(error).__name__}: {error}"}


def _unproven(seen: dict[str, Any], version: str) -> str:
    """Why a new interpreter would not load exactly this version; empty when it would."""
    found = seen["found"] or {}
    if found.get("error"):
        return f"a new interpreter cannot load the plugin: {found['error']}"
    if found.get("named") != 1 or not found.get("loads"):
        return "a new interpreter does not find the plugin"
    if found.get("version") != version:
        return f"a new interpreter loads {found.get('version')} from {found.get('where')}, not {version}"
    if found.get("heavy"):
        return "loading the plugin imported torch or SGLang"
    return ""


OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "status": status,
    "install": install,
    "uninstall": uninstall,
}


def main(request: Any, emit: Callable[[Any], None], stdin: BinaryIO) -> Any:
    """Runs one operation."""
    return OPERATIONS[request["op"]](request)
