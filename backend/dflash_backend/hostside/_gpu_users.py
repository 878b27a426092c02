"""Whether processes hold memory on a GPU of this host, as the driver tells it."""

from __future__ import annotations

import os
import shutil
import subprocess

from dflash_backend.hostside import _procs

SMI_WITHIN_S = 15.0
FIRST_NAMESPACE = "pid:[4026531836]"
"""The pid namespace of the machine itself (PROC_PID_INIT_INO), whose numbers the driver uses."""


def free_of(known: dict[int, int]) -> tuple[bool | None, str]:
    """(free, note) for processes given as pid -> start time.

    False: one of them holds GPU memory, or died and the driver has not given its memory back yet. None: there
    is no GPU, the driver does not answer, or its pids are those of the machine and this is a container.
    """
    if not shutil.which("nvidia-smi"):
        return None, ""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SMI_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"GPU processes cannot be seen: nvidia-smi: {type(error).__name__}"
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        said = (text.splitlines() or [f"status {done.returncode}"])[-1][:200]
        return None, f"GPU processes cannot be seen: nvidia-smi: {said}"
    listed = {int(word) for word in text.split() if word.isdigit()}
    return judge(listed, known, first_namespace())


def first_namespace() -> bool:
    """True when pids here are the machine's own."""
    try:
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    except OSError:
        return False


def judge(listed: set[int], known: dict[int, int], machine_pids: bool) -> tuple[bool | None, str]:
    """The verdict on the driver's list of pids; see ``free_of``."""
    now = {pid: _procs.process(pid) for pid in listed & set(known)}
    held = {pid for pid, one in now.items() if one is not None and one.start == known[pid]}
    if machine_pids:
        held |= {pid for pid, one in now.items() if one is None}
    if held:
        return False, f"GPU memory is still held by pid {', '.join(map(str, sorted(held)[:8]))}"
    if not machine_pids:
        return None, "GPU processes were not checked: in a container the driver names pids of the machine"
    return True, ""
