"""Reader of nvidia-smi's output: CSV queries, process lists, -L, the table where MIG leaves nothing else.

A cell that is no number is None and keeps its reason; a reason such as ``[GPU requires reset]`` is the state
of the GPU. A text in place of a table (driver mismatch, lost devices) is the state of the host, with advice.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_backend.core.samples import GpuProcess, GpuSample
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.gpu_cells import (
    NUMBER,
    TO_MIB,
    Cell,
    HostProblem,
    column_name,
    find_problem,
    gpu_from_row,
    read_cell,
)


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
class PlainRow:
    """A row whose columns are not known, or that is no GPU's."""

    columns: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiReport:
    """Everything that one piece of output told. ``gpus`` may repeat an index: one sample per row."""

    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[tuple[str | None, GpuProcess], ...] = ()
    """(GPU uuid, or its index in a table; process). In a container the pid is the host's: no match there."""
    migs: tuple[MigDevice, ...] = ()
    problems: tuple[HostProblem, ...] = ()
    rows: tuple[PlainRow, ...] = ()
    notes: tuple[str, ...] = field(default=())


_BASIC = "index name uuid memory.used memory.total utilization.gpu power.draw"
_FULL = (
    f"{_BASIC} power.limit temperature.gpu clocks.sm clocks.mem ecc.errors.uncorrected.volatile.total "
    "mig.mode.current"
)
_USUAL_ORDERS = tuple(tuple(order.split()) for order in (_FULL, f"{_BASIC} temperature.gpu"))
"""The orders in which this console's own monitor asks, for rows that were captured without a header."""
_HEADER_WORDS = frozenset(
    "index uuid name gpu_name gpu_uuid timestamp pid process_name pci.bus_id driver_version pstate".split()
)
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
_T_PROCESS = re.compile(
    r"^\|\s+(?P<gpu>\d{1,4})\s+(?:(?:N/A|\d+)\s+){0,2}(?P<pid>\d{1,10})\s+(?:C|G|C\+G|M\+C|M)\s+(?P<name>\S.*?)\s+"
    r"(?P<memory>\d+MiB|N/A)\s*\|"
)
_T_DATE = re.compile(r"^[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2} \d{4}$")
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
        if problem is not None and not re.search(r",\s*\[[^\]]*\]|\[[^\]]*\]\s*,", line):
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
        elif found := _T_PROCESS.match(line):
            memory = read_cell(found["memory"]).value
            process = GpuProcess(pid=int(found["pid"]), name=found["name"], memory_mib=memory)
            self._processes.append((found["gpu"], process))
        elif found := _T_NAME.match(line):
            self._table_gpu = (int(found["index"]), found["name"])
        elif found := _T_FIGURES.search(line) or _T_BROKEN.match(line):
            self._figures(found)
        else:
            return line.lstrip().startswith(("|", "+", "Fan ")) or bool(_T_DATE.match(line))
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
            and not any(NUMBER.match(cell) for cell in cells)
        ):
            self._columns = tuple(names)
            self._section = len(self._gpus)
            return
        if _UUID.match(cells[0] if cells else "") and len(cells) >= 4 and cells[1].isdigit():
            self._process(("gpu_uuid", "pid", "process_name", "used_memory"), cells)
        elif columns := self._columns_of(cells):
            if "pid" in columns:
                self._process(columns, cells)
            else:
                cells = _join_name(columns, cells)
                self._gpus.append(gpu_from_row(columns, cells, position=self._position(columns)))
        elif cells:
            self._rows.append(
                PlainRow(columns=self._columns, cells=tuple(read_cell(cell) for cell in cells[:64]))
            )

    def _columns_of(self, cells: Sequence[str]) -> list[str]:
        """The columns of a row: those of the header, else an order that is asked for often; else none."""
        if self._columns:
            known = [column_name(column) for column in self._columns]
            return known if len(cells) >= len(known) else []
        if len(cells) > 2 and cells[0].isdigit() and _UUID.match(cells[2]):
            return next((list(order) for order in _USUAL_ORDERS if len(order) == len(cells)), [])
        return []

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
            memory_mib=None if memory.value is None else memory.value * TO_MIB.get(memory.unit.lower(), 1.0),
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
