"""From the monitor's JSON lines to samples: the console's side of ``hostside/monitor.py``.

Everything that comes in was written on another machine: wrong types become missing values, text is made
clean, lengths are bounded, and nothing here raises for what a tick holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast, get_args

from dflash_backend.core.errors import FailedError
from dflash_backend.core.samples import (
    GpuHealth,
    GpuProcess,
    GpuSample,
    GpuSource,
    HostSample,
    RunStatus,
)
from dflash_backend.core.text import sanitise
from dflash_backend.runs.rows import run_status
from dflash_backend.telemetry.run_log import RunLog
from dflash_backend.telemetry.series import finite

PROTOCOL = 1
MAX_GPUS = 64
MAX_ROWS = 256
CLOCKS_AGREE_S = 2.0
"""Less than this between the clocks is the way of the message."""
_STATIC = ("argv", "profile", "profile_digest", "profile_toml", "started_by", "log_path")


def _text(value: object, limit: int = 500, *, multiline: bool = False) -> str:
    return sanitise(value, multiline=multiline, limit=limit) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    return finite(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and abs(number) < 2**63 else None


def _rows(value: object, limit: int) -> list[Mapping[str, object]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [row for row in value[:limit] if isinstance(row, Mapping)]


def read_gpu(row: Mapping[str, object]) -> GpuSample | None:
    """One GPU row; None when it has no index. Odd cells are None, the row stays."""
    index = _whole(row.get("index"))
    if index is None:
        return None
    health = row.get("health")
    return GpuSample(
        index=index,
        name=_text(row.get("name"), 120),
        uuid=_text(row.get("uuid"), 120) or None,
        memory_used_mib=_number(row.get("memory_used_mib")),
        memory_total_mib=_number(row.get("memory_total_mib")),
        utilization_pct=_number(row.get("utilization_pct")),
        power_w=_number(row.get("power_w")),
        power_limit_w=_number(row.get("power_limit_w")),
        temperature_c=_number(row.get("temperature_c")),
        sm_clock_mhz=_number(row.get("sm_clock_mhz")),
        memory_clock_mhz=_number(row.get("memory_clock_mhz")),
        ecc_uncorrected=_whole(row.get("ecc_uncorrected")),
        health=cast("GpuHealth", health) if health in get_args(GpuHealth) else "unknown",
        health_note=_text(row.get("health_note"), 200),
        processes=tuple(
            GpuProcess(
                pid=pid,
                name=_text(entry.get("name"), 200),
                memory_mib=_number(entry.get("memory_mib")),
                user=_text(entry.get("user"), 64) or None,
            )
            for entry in _rows(row.get("processes"), MAX_ROWS)
            if (pid := _whole(entry.get("pid"))) is not None
        ),
    )


class HostReader:
    """Reads the stream of one monitor. Log pieces and what is sent once are kept between ticks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._boot_id: str | None = None
        self._cpus: int | None = None
        self._offset = 0.0
        self._static: dict[str, dict[str, object]] = {}
        self.logs: dict[str, RunLog] = {}
        self.restart()

    def restart(self) -> None:
        """A new monitor begins: it tells everything again."""
        self._greeted = False

    def read(self, message: object, at: float) -> HostSample | None:
        """A sample, or None for the first line. Raises FailedError when the other side is no such monitor."""
        if not isinstance(message, Mapping):
            raise FailedError("the monitor sent something that is not a JSON object", where=self._host)
        if not self._greeted:
            if message.get("protocol") != PROTOCOL:
                raise FailedError(
                    f"the monitor speaks protocol {_text(str(message.get('protocol')), 20)}, not {PROTOCOL}",
                    where=self._host,
                    next_step="install one version of dflash-console only",
                )
            self._greeted = True
            self._boot_id = _text(message.get("boot_id"), 64) or None
            self._cpus = _whole(message.get("cpus"))
            return None
        return self._sample(message, at)

    def _sample(self, tick: Mapping[str, object], at: float) -> HostSample:
        host_at = _number(tick.get("at"))
        # Times of runs are the host's; a clock that is off must not make a run of now look hours old.
        self._offset = 0.0 if host_at is None or abs(at - host_at) < CLOCKS_AGREE_S else at - host_at
        host = tick.get("host")
        figures = host if isinstance(host, Mapping) else {}
        gpu = tick.get("gpu")
        gpus = gpu if isinstance(gpu, Mapping) else {}
        source = gpus.get("source")
        runs = [run for row in _rows(tick.get("runs"), MAX_ROWS) if (run := self._run(row, at)) is not None]
        present = {run.run_id for run in runs}
        for gone in set(self._static) - present:
            del self._static[gone]
        for gone in set(self.logs) - present:
            del self.logs[gone]
        notes = tick.get("notes")
        samples = [s for row in _rows(gpus.get("rows"), MAX_GPUS) if (s := read_gpu(row)) is not None]
        return HostSample(
            host=self._host,
            at=at,
            boot_id=self._boot_id,
            gpus=tuple(sorted(samples, key=lambda sample: sample.index)),
            gpu_source=cast("GpuSource", source) if source in get_args(GpuSource) else "none",
            gpu_note=_text(gpus.get("note"), 600),
            memory_total_mib=_number(figures.get("memory_total_mib")),
            memory_available_mib=_number(figures.get("memory_available_mib")),
            load1=_number(figures.get("load1")),
            cpus=self._cpus,
            runs=tuple(runs),
            listening=_ports(tick.get("listening")),
            notes={_text(k, 40): _text(v, 300) for k, v in notes.items()}
            if isinstance(notes, Mapping)
            else {},
        )

    def _time(self, at: float | None) -> float | None:
        """A time of the host on the console's clock."""
        return None if at is None else at + self._offset

    def _run(self, row: Mapping[str, object], at: float) -> RunStatus | None:
        run_id = _text(row.get("run_id"), 200)
        if not run_id:
            return None
        static = self._static.setdefault(run_id, {})
        static.update((key, row[key]) for key in _STATIC if key in row)
        log = self.logs.get(run_id)
        if log is None:
            log = self.logs[run_id] = RunLog()
        piece = row.get("log")
        if isinstance(piece, Mapping):
            log.take(piece, at)
        run = run_status({**row, **static})
        return replace(
            run,
            started_at=self._time(run.started_at),
            exited_at=self._time(run.exited_at),
            stop_requested_at=self._time(run.stop_requested_at),
            log_tail=log.tail(),
        )


def _ports(value: object) -> dict[int, int | None]:
    """JSON has text keys only."""
    if not isinstance(value, Mapping):
        return {}
    return {int(port): _whole(pid) for port, pid in value.items() if isinstance(port, str) and port.isdigit()}
