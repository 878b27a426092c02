"""From what the host says about a run to a ``RunStatus``, and the meaning of an exit code in words."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import cast

from dflash_backend.core.samples import RunManager, RunStatus
from dflash_backend.core.text import redact, redact_argv, sanitise

_MANAGERS: Mapping[str, RunManager] = {"systemd": "systemd", "setsid": "setsid", "adopted": "adopted"}
MAX_NAME = 200
MAX_NOTE = 500
MAX_PATH = 4096
MAX_PROFILE = 65536
MAX_TAIL = 1024 * 1024
_HUGE = 2.0**63


def run_status(
    row: Mapping[str, object], profiles: Mapping[str, object] | None = None, *, secrets: Sequence[str] = ()
) -> RunStatus:
    """One row of the host (``hostside/_runlist.py``), clean and without secrets; a missing key is unknown.

    ``profiles``: texts of profiles that rows refer to by ``profile_ref``. Never raises: a cell of the wrong
    type, or beyond what it can mean, counts as missing; text is cut where it could not be real.
    """

    def text(key: str, limit: int = MAX_NAME) -> str:
        value = row.get(key)
        return sanitise(value, multiline=False, limit=limit) if isinstance(value, str) else ""

    def page(value: object, limit: int) -> str:
        return redact(sanitise(value, limit=limit), secrets) if isinstance(value, str) else ""

    argv, gpus = row.get("argv"), row.get("gpus")
    words = (
        [sanitise(word, multiline=False, limit=MAX_PATH) for word in argv if isinstance(word, str)]
        if isinstance(argv, list)
        else []
    )
    toml = page(row.get("profile_toml"), MAX_PROFILE)
    reference = row.get("profile_ref")
    if not toml and isinstance(reference, str) and profiles:
        toml = page(profiles.get(reference), MAX_PROFILE)
    return RunStatus(
        run_id=text("run_id"),
        server=text("server"),
        folder=text("folder", MAX_PATH),
        manager=_MANAGERS.get(text("manager"), "setsid"),
        profile=text("profile"),
        profile_digest=text("profile_digest"),
        profile_toml=toml,
        argv=tuple(redact_argv(words, secrets)),
        port=_whole(row.get("port")),
        pid=_whole(row.get("pid")),
        pgid=_whole(row.get("pgid")),
        alive=row.get("alive") is True,
        started_at=_number(row.get("started_at")),
        exit_code=_whole(row.get("exit_code")),
        exited_at=_number(row.get("exited_at")),
        started_by=text("started_by"),
        stop_requested_at=_number(row.get("stop_requested_at")),
        rss_mib=_number(row.get("rss_mib")),
        log_path=text("log_path", MAX_PATH),
        log_size=_whole(row.get("log_size")),
        log_tail=page(row.get("log_tail"), MAX_TAIL),
        note=redact(text("note", MAX_NOTE), secrets),
        left=_whole(row.get("left")) or 0,
        gpus=tuple(i for one in gpus if (i := _whole(one)) is not None) if isinstance(gpus, list) else None,
    )


def _number(value: object) -> float | None:
    # JSON as Python reads it also has NaN, infinities, and whole numbers that no float can hold.
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_HUGE < value < _HUGE:
        return None
    return float(value)


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


_CODES = {
    125: "it could not be started",
    126: "its interpreter or program is not executable",
    127: "its interpreter or program was not found",
}
_SIGNALS = {
    signal.SIGKILL: "killed",
    signal.SIGABRT: "aborted: an assertion or a CUDA error in native code",
    signal.SIGSEGV: "crashed: invalid memory access in native code",
    signal.SIGBUS: "crashed: bus error, often a full /dev/shm",
    signal.SIGTERM: "ended by SIGTERM",
}


def explain_exit(run: RunStatus) -> str:
    """Why a run is over, in words; empty while it lives or when nothing is known.

    SGLang's launcher ends its children and then itself with SIGKILL when it gets SIGTERM, so after a stop of
    ours 137 is the good case. Without one it mostly is the kernel's, for want of memory.
    """
    code = run.exit_code
    if run.alive or code is None:
        return ""
    asked = run.stop_requested_at is not None
    if code in (0, 143, 137) and asked:
        return "stopped" if code != 137 else "stopped (137: SGLang kills itself at the end of a stop)"
    if code == 0:
        return "ended by itself without an error (exit code 0)"
    if code == 137:
        return "killed by SIGKILL (137), not by a stop of ours: mostly the kernel, out of memory; see dmesg"
    if code in _CODES:
        return f"{_CODES[code]} (exit code {code}); see its log"
    if code > 128:
        try:
            number = signal.Signals(code - 128)
        except ValueError:
            return f"exit code {code}"
        return f"{_SIGNALS.get(number, f'ended by {number.name}')} (exit code {code})"
    return f"failed with exit code {code}"


def rows_of(answer: object) -> tuple[list[Mapping[str, object]], Mapping[str, object]]:
    """The rows and the profiles' texts of a list answer; what is no row is left out."""
    if not isinstance(answer, Mapping):
        return [], {}
    rows = answer.get("runs")
    profiles = answer.get("profiles")
    return (
        [cast("Mapping[str, object]", row) for row in rows if isinstance(row, Mapping)]
        if isinstance(rows, list)
        else [],
        profiles if isinstance(profiles, Mapping) else {},
    )
