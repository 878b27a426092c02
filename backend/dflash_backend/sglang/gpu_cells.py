"""Cells of nvidia-smi: a number with its unit, a text, or the reason why there is neither.

The spellings differ between driver versions; a reason such as ``[GPU requires reset]`` is the GPU's state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_backend.core.samples import GpuHealth, GpuSample
from dflash_backend.core.text import sanitise

_NOT_ANUMBER = re.compile(
    r"^\[?\s*(?:N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset|No Permission|"
    r"NoPermission|Requested functionality has been deprecated|Not Found|GPU is lost|Unknown)\s*\]?$|"
    r"^ERR!$|^\[[^\]]*\]$",
    re.IGNORECASE,
)
NUMBER = re.compile(r"^(?P<n>[+-]?\d{1,15}(?:\.\d{1,9})?)\s*(?P<unit>%|[A-Za-z]{1,5})?$")
TO_MIB = {"kib": 1 / 1024, "mib": 1.0, "gib": 1024.0, "": 1.0, "mb": 1.0, "b": 1 / 1048576}
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
    (r"couldn't find libnvidia-ml", "the driver's libraries are missing: install the driver, or pass it in"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: its number with unit, else its text, else the reason why there is neither."""

    value: float | None = None
    unit: str = ""
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProblem:
    """Why nvidia-smi gives no figures, and what to do about it."""

    text: str
    advice: str
    gpu: str | None = None


def read_cell(raw: str) -> Cell:
    """One cell, whatever the driver put in it. Never raises."""
    text = sanitise(raw, multiline=False, limit=200).strip()
    if not text or _NOT_ANUMBER.match(text):
        return Cell(problem=text.strip("[] ") or "empty")
    found = NUMBER.match(text)
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
        hidden = "permission" in problems
        return "ok", "this user may not read all of its figures (permissions, or MIG)" if hidden else ""
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
                value *= TO_MIB.get(cell.unit.lower(), 1.0)
            values[_COLUMNS[column]] = value
    measured = [c for column, c in zip(names, cells, strict=False) if column in _COLUMNS]
    health, note = health_of(measured)
    ecc = values.pop("ecc_uncorrected", None)
    if health == "ok" and ecc:
        health, note = "ecc-errors", f"{int(ecc)} uncorrected ECC errors"
    asked_memory = any(column.startswith("memory.") for column in names)
    if health == "ok" and not note and asked_memory and values.get("memory_used_mib") is None:
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
