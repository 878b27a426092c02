"""Runs on this host: launch, list, stop, adopt, logs, forget. Everything there is to know is in run folders.

Request: ``{"op": …}`` with the keys that the function behind it names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any, BinaryIO

from dflash_backend.hostside import _adopt, _follow, _launch, _runfolder, _runlist, _stop, _systemd


def list_runs(request: dict[str, Any]) -> dict[str, Any]:
    """All runs, newest first; the text of a profile is sent once, under its digest."""
    profiles: dict[str, str] = {}
    rows = _runlist.RunList().rows()
    for row in rows:
        text = row.pop("profile_toml")
        if text:
            row["profile_ref"] = ref = f"{row['profile_digest']}/{hash(text)}"
            profiles[ref] = text
    return {"runs": rows, "profiles": profiles}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """Asks for a stop, then waits like ``stop-wait``."""
    _stop.begin(request)
    return _stop.wait(request)


def forget(request: dict[str, Any]) -> dict[str, Any]:
    """Deletes the folder of a run that is over. Raises HostError (refused) while anything of it lives."""
    folder = _runfolder.folder_of(request["run_id"])
    if os.path.islink(folder):
        os.unlink(folder)
        return {}
    try:
        run = _stop.Run(request["run_id"])
    except _runfolder.HostError as error:
        raise _runfolder.HostError("refused", f"{error}; it was not deleted", "delete it by hand") from None
    living = run.tracker.living()
    if living or _stop.stopping(folder):
        raise _runfolder.HostError(
            "refused", f"run {run.run_id} lives ({len(living)} processes)", "stop it first"
        )
    if run.unit:
        _systemd.forget(run.run_id)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise _runfolder.HostError("failed", f"{folder} could not be deleted: {error.strerror}") from None
    return {}


OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "launch": _launch.launch,
    "list": list_runs,
    "stop": stop,
    "stop-wait": _stop.wait,
    "adopt": _adopt.adopt,
    "forget": forget,
}


def main(request: Any, emit: Callable[[Any], None], stdin: BinaryIO) -> Any:
    """Runs one operation."""
    if request["op"] == "follow":
        _follow.follow(request, emit, stdin)
        return {}
    return OPERATIONS[request["op"]](request)
