"""GPUs through NVML, by the ``pynvml`` module of the server's venv."""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from dflash_backend.hostside._gpu_rows import advise, finish_row, number

if TYPE_CHECKING:
    from dflash_backend.hostside._gpu_rows import Row

COMPILE = (
    "import marshal, sys; "
    "sys.stdout.buffer.write(marshal.dumps(compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')))"
)


def import_pynvml() -> Any:
    """The module; raises ImportError, and whatever a broken installation raises.

    Compiling it takes some 15 MB that Python does not give back. Where no compiled form lies beside it (uv
    installs without), a child compiles it; nothing is written to the host in either case.
    """
    sys.dont_write_bytecode = True
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.loader is None:
        raise ImportError("not installed")
    uncompiled = spec.origin and spec.cached and not os.path.exists(spec.cached)
    if "pynvml" not in sys.modules and spec.origin and uncompiled:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", COMPILE, spec.origin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        )
        if done.returncode == 0:
            module = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)
            try:
                exec(marshal.loads(done.stdout), module.__dict__)  # noqa: S102, S302 - our own interpreter's
            except BaseException:
                del sys.modules["pynvml"]
                raise
    import pynvml

    return pynvml


class NvmlDevice:
    """One GPU through NVML. Every reading may fail on its own."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.flags: list[tuple[str, str]] = []
        self.handle: Any = None
        self.name = ""
        self.uuid: str | None = None
        self.limit: int | None = None
        self.ecc: int | None = None
        self.pending = False
        self.mig = False

    def open(self) -> None:
        """Finds the GPU; tried again each time while it is lost."""
        self.handle = self.ask("nvmlDeviceGetHandleByIndex", self.index, with_handle=False)
        self.name = self.text(self.ask("nvmlDeviceGetName"))
        self.uuid = self.text(self.ask("nvmlDeviceGetUUID")) or None
        self.limit = self.ask("nvmlDeviceGetEnforcedPowerLimit")

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
                said = "GPU is lost" if code == 15 else str(error)
                self.flags.append(("error", advise(said)))
            return None

    def read(self, slow: bool) -> Row:
        """All figures of this GPU now; ECC, remapping and MIG only when ``slow``."""
        self.flags.clear()
        if self.handle is None:
            self.open()
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
