"""Reader of nvidia-smi's output: CSV queries, process lists, -L, the table where MIG leaves nothing else.

A cell that is no number is None and keeps its reason; a reason such as ``[GPU requires reset]`` is the state
of the GPU. A text in place of a table (driver mismatch, lost devices) is the state of the host, with advice.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_backend.core.samples import GpuHealth, GpuProcess, GpuSample
from dflash_backend.core.text import sanitise


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: its number with unit, else its text, else the reason why there is neither."""

    value: float | None = None
    unit: str = ""
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One MIG instance as ``-L`` or the table tells it. Memory in MiB."""

    gpu: int
    device: int
    profile: str = ""
    uuid: str | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProblem:
    """Why nvidia-smi gives no figures, and what to do about it."""

    text: str
    advice: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRow:
    """A row whose columns are not known, or that is no GPU's."""

    columns: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiReport:
    """Everything that one piece of output told. ``gpus`` may repeat an index: one sample per row."""

    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[tuple[str | None, GpuProcess], ...] = ()
    """(GPU uuid, process). In a container the pid is the host's and matches nothing there."""
    migs: tuple[MigDevice, ...] = ()
    problems: tuple[HostProblem, ...] = ()
    rows: tuple[PlainRow, ...] = ()
    notes: tuple[str, ...] = field(default=())


_NOT_A_NUMBER = re.compile(
    r"^\[?\s*(?:N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset|No Permission|"
    r"NoPermission|Requested functionality has been deprecated|Not Found|GPU is lost|Unknown)\s*\]?$|"
    r"^ERR!$|^\[[^\]]*\]$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"^(?P<n>[+-]?\d{1,15}(?:\.\d{1,9})?)\s*(?P<unit>%|[A-Za-z]{1,5})?$")
_TO_MIB = {"kib": 1 / 1024, "mib": 1.0, "gib": 1024.0, "": 1.0, "mb": 1.0, "b": 1 / 1048576}
_COLUMNS = {
    "memory.used": "memory_used_mib",
    "memory.total": "memory_total_mib",
    "utilization.gpu": "utilization_pct",
    "power.draw": "power_w",
    "power.draw.instant": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
}
_HEADER_WORDS = frozenset(
    "index uuid name gpu_name gpu_uuid timestamp pid process_name pci.bus_id driver_version pstate".split()
)
_PROBLEMS: tuple[tuple[str, str], ...] = (
    (r"driver/library version mismatch", "the driver was upgraded without a reboot: reboot the host"),
    (
        r"Unable to determine the device handle",
        "a GPU fell off the bus: look for Xid in dmesg, then reboot the host",
    ),
    (r"GPU is lost", "a GPU fell off the bus: look for Xid in dmesg, then reboot the host"),
    (
        r"Failed to initialize NVML: Unknown Error",
        "in a container the GPU devices were lost (daemon reload): restart the container",
    ),
    (r"couldn't communicate with the NVIDIA driver", "the driver is not loaded: load it or reboot the host"),
    (r"Driver Not Loaded|driver is not loaded", "the driver is not loaded: load it or reboot the host"),
    (r"No devices were found", "the driver sees no GPU: check that one is passed to this machine"),
    (r"Insufficient Permissions", "this user may not read the GPUs: check the permissions of /dev/nvidia*"),
    (r"Failed to initialize NVML", "the driver does not answer: look at dmesg on the host"),
    (
        r"nvidia-smi: (?:command )?not found|nvidia-smi: No such file",
        "no NVIDIA driver here; if there is one, put nvidia-smi on the PATH of non-login shells",
    ),
    (
        r"is not a valid field to query",
        "this driver does not know a column that was asked for: ask for fewer",
    ),
)


def read_cell(raw: str) -> Cell:
    """One cell, whatever the driver put in it. Never raises."""
    text = sanitise(raw, multiline=False, limit=200).strip()
    if not text or _NOT_A_NUMBER.match(text):
        return Cell(problem=text.strip("[] ") or "empty")
    found = _NUMBER.match(text)
    if found is None:
        return Cell(text=text)
    value = float(found["n"])
    return Cell(value=value, unit=found["unit"] or "") if math.isfinite(value) else Cell(problem=text)


def health_of(cells: Sequence[Cell]) -> tuple[GpuHealth, str]:
    """The state that the cells without a number tell of: the worst one wins."""
    problems = " | ".join(cell.problem.lower() for cell in cells if cell.problem)
    if "requires reset" in problems:
        return "reset-required", "the driver says: GPU requires reset; stop what runs on it, then reset it"
    if "err!" in problems or "unknown error" in problems or "gpu is lost" in problems:
        return "error", "the driver reports an error in place of figures: look for Xid in dmesg"
    if any(cell.value is not None for cell in cells):
        return "ok", ""
    return "unknown", "no figures"


def gpu_from_row(columns: Sequence[str], raw: Sequence[str], *, position: int = 0) -> GpuSample:
    """A GPU row by the columns that were asked for (names as nvidia-smi spells them, unit suffix allowed).

    Cells that are no number become None without losing the row; ``position`` is the index when none was
    asked for.
    """
    names = [column_name(column) for column in columns]
    cells = [read_cell(cell) for cell in raw]
    values: dict[str, float | None] = {}
    index, name, uuid = position, "", None
    for column, cell in zip(names, cells, strict=False):
        if column == "index" and cell.value is not None:
            index = int(cell.value)
        elif column in ("name", "gpu_name"):
            name = cell.text
        elif column in ("uuid", "gpu_uuid"):
            uuid = cell.text or None
        elif column in _COLUMNS:
            value = cell.value
            if value is not None and column.startswith("memory."):
                value *= _TO_MIB.get(cell.unit.lower(), 1.0)
            values[_COLUMNS[column]] = value
    measured = [c for column, c in zip(names, cells, strict=False) if column in _COLUMNS]
    health, note = health_of(measured)
    ecc = values.pop("ecc_uncorrected", None)
    if health == "ok" and ecc:
        health, note = "ecc-errors", f"{int(ecc)} uncorrected ECC errors"
    asked_memory = any(column.startswith("memory.") for column in names)
    if health == "ok" and asked_memory and values.get("memory_used_mib") is None:
        note = "the driver reports no memory for this GPU: unified with the host's, or MIG"
    return GpuSample(
        index=index,
        name=name,
        uuid=uuid,
        ecc_uncorrected=None if ecc is None else int(ecc),
        health=health,
        health_note=note,
        **values,  # type: ignore[arg-type]
    )


def column_name(column: str) -> str:
    """``memory.used [MiB]`` as ``memory.used``; old spellings in the new one."""
    name = re.sub(r"\s*\[[^\]]*\]\s*$", "", sanitise(column, multiline=False, limit=100)).strip().lower()
    return {"used_gpu_memory": "used_memory", "clocks.gr": "clocks.sm"}.get(name, name)


def find_problem(text: str) -> HostProblem | None:
    """What a failure text of the driver means; None when it is none."""
    for pattern, advice in _PROBLEMS:
        if re.search(pattern, text, re.IGNORECASE):
            gpu = re.search(r"for GPU ([0-9A-Fa-f:.]{4,20}): ", text)
            return HostProblem(
                text=sanitise(text, multiline=False, limit=300).strip(),
                advice=advice,
                gpu=gpu[1] if gpu else None,
            )
    return None


_L_GPU = re.compile(r"^GPU (?P<index>\d{1,4}): (?P<name>.*?) \(UUID: (?P<uuid>[^)]*)\)")
_L_MIG = re.compile(r"^\s+MIG (?P<profile>\S+)\s+Device\s+(?P<device>\d{1,4}): \(UUID: (?P<uuid>[^)]*)\)")
_T_NAME = re.compile(r"^\|\s+(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s*\|")
_T_FIGURES = re.compile(
    r"(?P<temp>\d{1,3}C|N/A|ERR!)\s+(?P<perf>P\d{1,2}|N/A|ERR!)\s+"
    r"(?P<power>\d+W|N/A|ERR!)\s*/\s*(?P<limit>\d+W|N/A|ERR!)\s*\|?\s*"
    r"(?:(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB|(?P<none>N/A|ERR!))(?P<rest>.*)"
)
_T_BROKEN = re.compile(r"^\|?\s*ERR!.*?(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB")
_T_MIG = re.compile(
    r"^\|\s+(?P<gpu>\d{1,4})\s+(?P<gi>\d{1,4})\s+(?P<ci>\d{1,4})\s+(?P<device>\d{1,4})\s*\|"
    r"\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB"
)
_UUID = re.compile(r"^(?:GPU|MIG)-[\w/-]+$")
_UTILISATION = re.compile(r"(\d{1,3})%")


def read_nvidia_smi(text: str | bytes, *, columns: Sequence[str] = ()) -> SmiReport:
    """Reads any output of nvidia-smi, also several pieces one after the other. Never raises.

    ``columns``: those that were asked for, when the output has no header line.
    """
    reader = _Reader(tuple(columns))
    for line in sanitise(text).split("\n")[:100_000]:
        if line.strip():
            reader.feed(line)
    return reader.report()


class _Reader:
    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._gpus: list[GpuSample] = []
        self._processes: list[tuple[str | None, GpuProcess]] = []
        self._migs: list[MigDevice] = []
        self._problems: list[HostProblem] = []
        self._rows: list[PlainRow] = []
        self._notes: list[str] = []
        self._table_gpu: tuple[int, str] | None = None
        self._listed_gpu = 0
        self._section = 0

    def report(self) -> SmiReport:
        if self._processes:
            self._notes.append("process ids are the host's: inside a container they match nothing")
        return SmiReport(
            gpus=tuple(self._gpus),
            processes=tuple(self._processes),
            migs=tuple(self._migs),
            problems=tuple(self._problems),
            rows=tuple(self._rows),
            notes=tuple(self._notes),
        )

    def feed(self, line: str) -> None:
        problem = find_problem(line)
        # "[Insufficient Permissions]" in a row of CSV is a cell, not the whole answer.
        if problem is not None and "," not in line:
            self._problems.append(problem)
        elif line.startswith("NVML library version"):
            self._notes.append(sanitise(line, multiline=False, limit=200))
        elif not (self._list(line) or self._table(line)):
            self._csv(line)

    def _list(self, line: str) -> bool:
        if found := _L_GPU.match(line):
            self._listed_gpu = int(found["index"])
            self._gpus.append(GpuSample(index=self._listed_gpu, name=found["name"], uuid=found["uuid"]))
        elif found := _L_MIG.match(line):
            self._migs.append(
                MigDevice(
                    gpu=self._listed_gpu,
                    device=int(found["device"]),
                    profile=found["profile"],
                    uuid=found["uuid"],
                )
            )
        else:
            return False
        return True

    def _table(self, line: str) -> bool:
        if found := _T_MIG.match(line):
            self._migs.append(
                MigDevice(
                    gpu=int(found["gpu"]),
                    device=int(found["device"]),
                    profile=f"gi {found['gi']} ci {found['ci']}",
                    memory_used_mib=float(found["used"]),
                    memory_total_mib=float(found["total"]),
                )
            )
        elif found := _T_NAME.match(line):
            self._table_gpu = (int(found["index"]), found["name"])
        elif found := _T_FIGURES.search(line) or _T_BROKEN.match(line):
            self._figures(found)
        else:
            return line.lstrip().startswith(("|", "+", "Fan "))
        return True

    def _figures(self, found: re.Match[str]) -> None:
        parts = found.groupdict()
        index, name = self._table_gpu or (len(self._gpus), "")
        self._table_gpu = None

        def figure(key: str, unit: str) -> float | None:
            value = parts.get(key)
            return float(value.removesuffix(unit)) if value and value[0].isdigit() else None

        broken = "ERR!" in found[0]
        share = _UTILISATION.search(parts.get("rest") or "")
        used, total = figure("used", ""), figure("total", "")
        self._gpus.append(
            GpuSample(
                index=index,
                name=name,
                memory_used_mib=used,
                memory_total_mib=total,
                utilization_pct=float(share[1]) if share else None,
                power_w=figure("power", "W"),
                power_limit_w=figure("limit", "W"),
                temperature_c=figure("temp", "C"),
                health="error" if broken else "ok",
                health_note=(
                    "the driver reports ERR! in place of figures: look for Xid in dmesg"
                    if broken
                    else ("" if used is not None else "no memory figure: MIG")
                ),
            )
        )

    def _csv(self, line: str) -> None:
        cells = [cell.strip() for cell in next(csv.reader([line[:10_000]], skipinitialspace=True), [])]
        names = [column_name(cell) for cell in cells]
        if (
            len(cells) > 1
            and all(n in _HEADER_WORDS or "." in n or n == "used_memory" for n in names)
            and not any(_NUMBER.match(cell) for cell in cells)
        ):
            self._columns = tuple(names)
            self._section = len(self._gpus)
            return
        if _UUID.match(cells[0] if cells else "") and len(cells) >= 4 and cells[1].isdigit():
            self._process(("gpu_uuid", "pid", "process_name", "used_memory"), cells)
        elif self._columns and len(cells) >= len(self._columns):
            columns = [column_name(column) for column in self._columns]
            if "pid" in columns:
                self._process(columns, cells)
            else:
                cells = _join_name(columns, cells)
                self._gpus.append(gpu_from_row(columns, cells, position=self._position(columns)))
        elif cells:
            self._rows.append(
                PlainRow(columns=self._columns, cells=tuple(read_cell(cell) for cell in cells[:64]))
            )

    def _position(self, columns: Sequence[str]) -> int:
        # Rows with a timestamp are one GPU over time; without, each row is the next GPU.
        return 0 if "timestamp" in columns else len(self._gpus) - self._section

    def _process(self, columns: Sequence[str], cells: Sequence[str]) -> None:
        extra = len(cells) - len(columns)
        at = columns.index("process_name") if "process_name" in columns else None
        row = list(cells)
        if extra > 0 and at is not None:  # a comma in the name
            row[at : at + extra + 1] = [", ".join(row[at : at + extra + 1])]
        named = dict(zip(columns, row, strict=False))
        pid = read_cell(named.get("pid", "")).value
        memory = read_cell(named.get("used_memory", ""))
        if pid is None:
            self._rows.append(PlainRow(columns=tuple(columns), cells=tuple(read_cell(c) for c in row[:64])))
            return
        uuid = named.get("gpu_uuid")
        process = GpuProcess(
            pid=int(pid),
            name=sanitise(named.get("process_name", ""), multiline=False, limit=300),
            memory_mib=None if memory.value is None else memory.value * _TO_MIB.get(memory.unit.lower(), 1.0),
        )
        self._processes.append((uuid, process))


def _join_name(columns: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Cells with a name that holds commas put together again."""
    row = list(cells)
    extra = len(row) - len(columns)
    at = next((i for i, column in enumerate(columns) if column in ("name", "gpu_name")), None)
    if extra > 0 and at is not None:
        row[at : at + extra + 1] = [", ".join(row[at : at + extra + 1])]
    return row
