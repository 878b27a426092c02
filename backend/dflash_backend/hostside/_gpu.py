"""GPUs of this host, read in a thread of its own so that a driver that hangs cannot stop the rest.

NVML (the ``pynvml`` module of the server's venv) when it can be imported and initialised, else one
long-running ``nvidia-smi``, else nothing with the reason. A cell that cannot be read is None and never 0;
text such as ``[GPU requires reset]`` becomes the health of its row.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these spellings cannot be evaluated by Python 3.8
    Row = dict[str, Any]
    Health = tuple[str, str] | None

SMI_FULL = (
    "index name uuid memory.used memory.total utilization.gpu power.draw power.limit temperature.gpu "
    "clocks.sm clocks.mem ecc.errors.uncorrected.volatile.total mig.mode.current"
).split()
SMI_BASIC = "index name uuid memory.used memory.total utilization.gpu power.draw temperature.gpu".split()
NUMBERS = {
    "memory.used": "memory_used_mib",
    "memory.total": "memory_total_mib",
    "utilization.gpu": "utilization_pct",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
}
ADVICE = (
    ("driver/library version mismatch", "the driver was upgraded without a reboot: reboot the host"),
    ("unable to determine the device handle", "a GPU fell off the bus: look for Xid in dmesg, then reboot"),
    ("gpu is lost", "a GPU fell off the bus: look for Xid in dmesg, then reboot"),
    ("nvml: unknown error", "in a container the GPU devices were lost: restart the container"),
    ("couldn't communicate with the nvidia driver", "the driver is not loaded: load it or reboot the host"),
    ("driver not loaded", "the driver is not loaded: load it or reboot the host"),
    ("no devices were found", "the driver sees no GPU: check that one is passed to this machine"),
    ("insufficient permissions", "this user may not read the GPU: check the permissions of /dev/nvidia*"),
    ("not found", "no NVIDIA driver here; if there is one, put nvidia-smi on the PATH of non-login shells"),
)
SLOW_EVERY_S = 10.0
STALE_S = 5.0
RETRY_S = 30.0


def advise(text: str) -> str:
    """A failure text of the driver with what to do about it."""
    text = " ".join(str(text).split())[:500]
    lowered = text.lower()
    for part, advice in ADVICE:
        if part in lowered:
            return f"{text}: {advice}"
    return text


def number(value: Any) -> float | None:
    """A finite float, or None for everything else, above all for ``[N/A]``."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def health_of_text(cell: str) -> Health:
    """The health that a cell without a number tells, or None when it only means "not available"."""
    lowered = cell.lower()
    if "requires reset" in lowered:
        return "reset-required", "the driver says: GPU requires reset"
    if "err!" in lowered or "unknown error" in lowered or "gpu is lost" in lowered:
        return "error", "the driver says: {}".format(cell.strip("[] "))
    return None


def finish_row(row: Row, flagged: Health) -> Row:
    """Adds health to a row: what the driver flagged, else ECC errors, else ok when it has figures."""
    note = ""
    if flagged:
        health, note = flagged
    elif row.get("ecc_uncorrected"):
        health, note = (
            "ecc-errors",
            f"{row['ecc_uncorrected']} uncorrected ECC errors since the driver was loaded",
        )
    elif any(row.get(key) is not None for key in NUMBERS.values()):
        health = "ok"
    else:
        health = "unknown"
    if row.get("memory_total_mib") is None and health == "ok":
        note = row.pop("mig_note", "") or "the driver reports no memory for this GPU (unified memory?)"
    elif row.get("mig_note"):
        note = note or row.pop("mig_note")
    row.pop("mig_note", None)
    row["health"], row["health_note"] = health, note
    return row


def parse_smi_line(line: str, fields: list[str]) -> Row | None:
    """One CSV row of ``nvidia-smi --query-gpu`` as a dictionary, or None when the line is no such row."""
    cells = next(csv.reader([line], skipinitialspace=True), [])
    cells = [cell.strip() for cell in cells]
    extra = len(cells) - len(fields)
    if extra < 0 or not cells[0].isdigit():
        return None
    if extra:  # a comma in the name, which stands second
        cells[1 : 2 + extra] = [", ".join(cells[1 : 2 + extra])]
    row: Row = {"index": int(cells[0]), "name": cells[1], "uuid": None}
    flagged = None
    for field, cell in zip(fields[2:], cells[2:]):  # noqa: B905 - as many, see above
        if field == "uuid":
            row["uuid"] = cell if cell.startswith(("GPU-", "MIG-")) else None
        elif field == "mig.mode.current":
            if cell.lower() == "enabled":
                row["mig_note"] = "MIG is on: figures are not per instance"
        else:
            # Units appear when a wrapper drops "nounits".
            value = number(cell.split(" ")[0])
            row[NUMBERS[field]] = value
            if value is None:
                flagged = flagged or health_of_text(cell)
    if row.get("ecc_uncorrected") is not None:
        row["ecc_uncorrected"] = int(row["ecc_uncorrected"])
    return finish_row(row, flagged)


def parse_compute_apps(text: str) -> dict[str, list[Row]]:
    """``gpu_uuid,pid,process_name,used_memory`` rows by uuid. Names may hold commas."""
    result: dict[str, list[Row]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        if len(cells) >= 4 and cells[1].isdigit():
            entry = {
                "pid": int(cells[1]),
                "name": ",".join(cells[2:-1])[:200],
                "memory_mib": number(cells[-1].split(" ")[0]),
            }
            result.setdefault(cells[0], []).append(entry)
    return result


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

    # NVML ------------------------------------------------------------------------------------------

    def read_nvml(self) -> str:
        """Reads until closed; returns why not when NVML is not to be had."""
        try:
            import pynvml
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


class NvmlDevice:
    """One GPU through NVML. Every reading may fail on its own."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.flags: list[tuple[str, str]] = []
        self.handle: Any = None
        self.handle = self.ask("nvmlDeviceGetHandleByIndex", index, with_handle=False)
        self.name = self.text(self.ask("nvmlDeviceGetName"))
        self.uuid = self.text(self.ask("nvmlDeviceGetUUID")) or None
        self.limit = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        self.ecc: int | None = None
        self.pending = False
        self.mig = False

    @staticmethod
    def text(value: Any) -> str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")

    def ask(self, name: str, *arguments: Any, with_handle: bool = True) -> Any:
        """One NVML call; None when it is not there or fails. A lost or failed GPU is remembered."""
        function = getattr(self.nvml, name, None)
        if function is None:
            return None
        if with_handle:
            if self.handle is None:
                return None
            arguments = (self.handle, *arguments)
        try:
            return function(*arguments)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == 16:
                self.flags.append(("reset-required", "the driver says: GPU requires reset"))
            elif code in (15, 999):
                self.flags.append(("error", advise(str(error))))
            return None

    def read(self, slow: bool) -> Row:
        """All figures of this GPU now; ECC, remapping and MIG only when ``slow``."""
        self.flags.clear()
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        utilization = self.ask("nvmlDeviceGetUtilizationRates")
        power = self.ask("nvmlDeviceGetPowerUsage")
        if slow:
            self.ecc = self.ask("nvmlDeviceGetTotalEccErrors", 1, 0)
            remapped = self.ask("nvmlDeviceGetRemappedRows")
            self.pending = bool(remapped and remapped[2])
            mig = self.ask("nvmlDeviceGetMigMode")
            self.mig = bool(mig and mig[0])
        entries = []
        for process in self.ask("nvmlDeviceGetComputeRunningProcesses") or ():
            used = getattr(process, "usedGpuMemory", None)
            entries.append({"pid": process.pid, "name": "", "memory_mib": used / 2**20 if used else None})
        for entry in entries:
            entry["name"] = self.command(entry["pid"])
        row = {
            "index": self.index,
            "name": self.name,
            "uuid": self.uuid,
            "memory_used_mib": memory.used / 2**20 if memory else None,
            "memory_total_mib": memory.total / 2**20 if memory else None,
            "utilization_pct": number(utilization.gpu) if utilization else None,
            "power_w": power / 1000.0 if power is not None else None,
            "power_limit_w": self.limit / 1000.0 if self.limit is not None else None,
            "temperature_c": number(self.ask("nvmlDeviceGetTemperature", 0)),
            "sm_clock_mhz": number(self.ask("nvmlDeviceGetClockInfo", 1)),
            "memory_clock_mhz": number(self.ask("nvmlDeviceGetClockInfo", 2)),
            "ecc_uncorrected": self.ecc,
            "processes": entries,
        }
        if self.mig:
            row["mig_note"] = "MIG is on: figures are not per instance"
        if self.pending:
            self.flags.append(("reset-required", "memory rows wait to be remapped: reset the GPU"))
        return finish_row(row, self.flags[0] if self.flags else None)

    @staticmethod
    def command(pid: int) -> str:
        try:
            with open(f"/proc/{pid}/comm", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return ""
