"""GPU rows: what the driver says of one GPU, with odd cells missing and the row kept.

A cell that cannot be read is None and never 0; text such as ``[GPU requires reset]`` becomes the health of
its row, and a failure of the driver becomes a text with advice.
"""

from __future__ import annotations

import csv
import math
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
