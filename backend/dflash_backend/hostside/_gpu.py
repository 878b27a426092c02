"""GPUs of this host, read in a thread of its own so that a driver that hangs cannot stop the rest.

NVML when it can be imported and initialised, else one long-running ``nvidia-smi``, else nothing and why.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from dflash_backend.hostside._gpu_rows import SMI_BASIC, SMI_FULL, advise, parse_compute_apps, parse_smi_line
from dflash_backend.hostside._nvml import NvmlDevice, import_pynvml

if TYPE_CHECKING:
    from dflash_backend.hostside._gpu_rows import Row

SLOW_EVERY_S = 10.0
STALE_S = 5.0
RETRY_S = 30.0


class GpuReader(threading.Thread):
    """Keeps the newest GPU rows; ``sample`` never blocks."""

    def __init__(self, interval_s: float) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.interval_s = interval_s
        self.child: subprocess.Popen[str] | None = None
        self.nvml_why = ""
        self.closing = threading.Event()
        # One assignment replaces the whole result, so a reader sees the old or the new one.
        self.result: tuple[str, str, dict[int, Row], float | None] = ("none", "looking for GPUs", {}, None)
        self.known = threading.Event()
        """Set once the first answer is there: figures, or why there are none."""
        self.users: dict[int, str] = {}

    def sample(self) -> Row:
        """Newest source, note and rows; figures become None when the driver has gone silent."""
        source, note, rows, at = self.result
        values = [rows[index] for index in sorted(rows)]
        if at is None:
            return {"source": source, "note": note, "rows": []}
        silent = time.monotonic() - at
        if silent > max(STALE_S, 4 * self.interval_s):
            note = f"the GPU driver has not answered for {silent:.0f} s"
            values = [
                {"index": row["index"], "name": row["name"], "uuid": row["uuid"], "health": "unknown"}
                for row in values
            ]
        return {"source": source, "note": note, "rows": values}

    def tell(self, source: str, note: str, rows: dict[int, Row], at: float | None) -> None:
        """Replaces what is known."""
        self.result = (source, note, rows, at)
        self.known.set()

    def run(self) -> None:
        while not self.closing.is_set():
            try:
                why = self.read_nvml() or self.read_smi()
            except Exception as error:
                why = f"reading GPUs failed: {type(error).__name__}: {error}"
            self.tell("none", why, {}, None)
            self.closing.wait(RETRY_S)

    def close(self) -> None:
        """Stops reading and ends the child."""
        self.closing.set()
        child = self.child
        if child is not None and child.poll() is None:
            child.kill()
            # Waited for, since nobody may reap it once we are gone: PID 1 of a container often does not.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2)

    # NVML ------------------------------------------------------------------------------------------

    def read_nvml(self) -> str:
        """Reads until closed; returns why not when NVML is not to be had."""
        try:
            pynvml = import_pynvml()
        except Exception as error:  # a broken installation may raise anything
            self.nvml_why = f"pynvml: {error}"
            return ""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.nvml_why = f"NVML: {error}"
            return ""
        try:
            count = pynvml.nvmlDeviceGetCount()
            if not count:
                return advise("No devices were found")
            devices = [NvmlDevice(pynvml, index) for index in range(count)]
            slow_at = 0.0
            while not self.closing.is_set():
                now = time.monotonic()
                slow = now - slow_at >= SLOW_EVERY_S
                slow_at = now if slow else slow_at
                rows: dict[int, Row] = {}
                for device in devices:
                    rows[device.index] = device.read(slow)
                    for entry in rows[device.index]["processes"]:
                        entry["user"] = self.user_of(entry["pid"])
                self.tell("nvml", "", rows, time.monotonic())
                self.closing.wait(self.interval_s)
            return ""
        finally:
            with contextlib.suppress(pynvml.NVMLError):  # it may be the driver that went
                pynvml.nvmlShutdown()

    def user_of(self, pid: int) -> str | None:
        """Owner of a process, or None when the pid belongs to another namespace or is gone."""
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return None
        if uid not in self.users:
            try:
                import pwd

                self.users[uid] = pwd.getpwuid(uid).pw_name
            except (ImportError, KeyError):
                self.users[uid] = str(uid)
        return self.users[uid]

    # nvidia-smi -----------------------------------------------------------------------------------

    def read_smi(self) -> str:
        """Reads one nvidia-smi until it ends; returns why it did."""
        program = shutil.which("nvidia-smi")
        for folder in ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib"):
            candidate = os.path.join(folder, "nvidia-smi")
            if program is None and os.access(candidate, os.X_OK):
                program = candidate
        if program is None:
            return advise(f"nvidia-smi: not found ({self.nvml_why})")
        why = self.follow_smi(program, SMI_FULL)
        if "not a valid field" in why.lower():
            why = self.follow_smi(program, SMI_BASIC)
        return advise(why)

    def follow_smi(self, program: str, fields: list[str]) -> str:
        environment = dict(os.environ, LC_ALL="C", LANG="C")
        child = subprocess.Popen(
            [
                program,
                "--query-gpu=" + ",".join(fields),
                "--format=csv,noheader,nounits",
                "-lms",
                str(max(100, int(self.interval_s * 1000))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            errors="replace",
            bufsize=1,
        )
        self.child = child
        said: list[str] = []
        rows: dict[int, Row] = {}
        apps: dict[str, list[Row]] = {}
        apps_at = None
        stream = child.stdout
        assert stream is not None
        try:
            while not self.closing.is_set():
                line = stream.readline(4096)
                if not line:
                    break
                row = parse_smi_line(line, fields)
                if row is None:
                    said = [*said, line.strip()][-6:]
                    continue
                now = time.monotonic()
                if apps_at is None or now - apps_at >= SLOW_EVERY_S:
                    apps_at, apps = now, self.compute_apps(program, environment)
                row["processes"] = apps.get(row["uuid"], [])
                rows = dict(rows)
                rows[row["index"]] = row
                self.tell("nvidia-smi", "", rows, now)
        finally:
            if child.poll() is None:
                child.kill()
            stream.close()
            code = child.wait()
        text = "; ".join(part for part in said if part) or "nvidia-smi ended without a word"
        return f"{text} (exit {code})"

    def compute_apps(self, program: str, environment: dict[str, str]) -> dict[str, list[Row]]:
        try:
            done = subprocess.run(
                [
                    program,
                    "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
                    "--format=csv,noheader,nounits",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=8,
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        result = parse_compute_apps(done.stdout.decode("utf-8", "replace"))
        for entries in result.values():
            for entry in entries:
                entry["user"] = self.user_of(entry["pid"])
        return result
