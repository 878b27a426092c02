"""From what a server says to its live figures, each with the reason when it is missing or not clean.

Sources in order of trust for the decode rate: the counter of decoded tokens; the counter of generated tokens,
which moves only when a request completes; the log's decode line; the last throughput that the server
remembers, which stays after the work is over and is therefore marked and dropped when nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from dflash_backend.core.profile import Algorithm
from dflash_backend.core.samples import ServerFigures
from dflash_backend.sglang.loads import LoadsReading
from dflash_backend.sglang.log import DecodeLine
from dflash_backend.sglang.metrics import MetricsReading
from dflash_backend.telemetry.rates import Counter, Delta, Ratio
from dflash_backend.telemetry.series import finite

COMPLETION_WINDOW_S = 15.0
"""Completed requests come in lumps: their tokens are counted over so long."""
ACCEPT_WINDOW_S = 30.0
NO_METRICS = "the server runs without --enable-metrics"
IDLE = "idle: the last value is stale"

Source = Literal["counter", "log", "gauge-last", ""]
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One round of questions. None: not answered; ``*_problem`` says why."""

    at: float
    metrics: MetricsReading | None = None
    metrics_problem: str = ""
    loads: LoadsReading | None = None
    loads_problem: str = ""
    log: tuple[DecodeLine, float | None] | None = None
    algorithm: Algorithm | None = None


class FigureMaker:
    """Remembers the counters of one server. ``reset`` when another process answers."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.reset()

    def reset(self) -> None:
        """Forgets everything: the next values are first ones."""
        self._decode = Counter()
        self._generated = Counter(window_s=COMPLETION_WINDOW_S)
        self._prefill = Counter()
        self._accept = Ratio(window_s=ACCEPT_WINDOW_S)
        self.restarted = False
        """True when a counter fell in the last round: another process answers on the port."""

    def settings_changed(self) -> None:
        """The server speculates differently from now on: what was accepted before says nothing of it."""
        self._accept.reset()

    def make(self, readings: Readings) -> ServerFigures:
        """The figures of this round."""
        metrics = readings.metrics or MetricsReading()
        loads = readings.loads or LoadsReading()
        notes: dict[str, str] = {}
        at = readings.at

        decoded = self._decode.update(at, metrics.decode_tokens_total)
        generated = self._generated.update(at, metrics.generation_tokens_total)
        prefilled = self._prefill.update(at, metrics.prefill_tokens_total)
        self.restarted = "restart" in (decoded.cause, generated.cause, prefilled.cause)
        ratio = self._accept.update(at, metrics.generation_tokens_total, metrics.verify_calls_total)

        running = _either(loads.running, metrics.running)
        queued = _either(loads.waiting, metrics.queued)
        if running is None:
            why = readings.loads_problem or readings.metrics_problem or "the server does not report it"
            notes["running"] = notes["queued"] = why
        elif loads.running is None:
            notes["running"] = notes["queued"] = "as of the last scheduler report"
        rate, source = self._rate(readings, decoded, generated, running, notes)
        return ServerFigures(
            server=self._server,
            at=at,
            decode_tok_s=rate,
            decode_source=source if rate is not None else "",
            prefill_tok_s=self._noted("prefill_tok_s", prefilled, readings, notes),
            accept_length=self._accept_length(readings, ratio, running, notes),
            running=running,
            queued=queued,
            token_usage=finite(_either(loads.token_usage, metrics.token_usage)),
            kv_tokens=_either(loads.used_tokens, metrics.used_tokens),
            cache_hit_rate=finite(_either(metrics.cache_hit_rate, loads.cache_hit_rate)),
            retracted=_either(metrics.retracted_now, _retracted(loads)),
            notes=notes,
        )

    @staticmethod
    def _noted(name: str, delta: Delta, readings: Readings, notes: dict[str, str]) -> float | None:
        if delta.rate is None:
            missing = readings.metrics_problem if delta.cause == "missing" else ""
            notes[name] = missing or delta.note
        return delta.rate

    def _rate(
        self,
        readings: Readings,
        decoded: Delta,
        generated: Delta,
        running: int | None,
        notes: dict[str, str],
    ) -> tuple[float | None, Source]:
        if decoded.cause != "missing":
            rate = self._noted("decode_tok_s", decoded, readings, notes)
            logged = finite(readings.log[1]) if readings.log is not None else None
            if decoded.cause == "first" and running and logged is not None:
                # One look at a busy server should tell its rate: the log already has one.
                notes["decode_tok_s"] = f"{decoded.note}: from the log until then"
                return logged, "log"
            return rate, "counter"
        reason = readings.metrics_problem or "no counter of decoded tokens"
        # Nothing completed while something runs is no zero: the tokens are on their way.
        if generated.cause != "missing" and (generated.amount or not running):
            rate = self._noted("decode_tok_s", generated, readings, notes)
            if rate is not None:
                notes["decode_tok_s"] = f"{reason}: counted when a request completes"
            return rate, "counter"
        if running == 0:
            notes["decode_tok_s"] = f"{reason}; {IDLE}"
            return None, ""
        if readings.log is not None:
            throughput = finite(readings.log[1])
            notes["decode_tok_s"] = f"{reason}: from the log" + (
                "" if throughput is not None else "; first value after a pause dropped"
            )
            return throughput, "log"
        last = _either(
            readings.loads.gen_throughput if readings.loads else None,
            readings.metrics.gen_throughput if readings.metrics else None,
        )
        if last is not None and running is not None:
            notes["decode_tok_s"] = f"{reason}: the server's last interval"
            return finite(last), "gauge-last"
        notes["decode_tok_s"] = reason
        return None, ""

    @staticmethod
    def _accept_length(
        readings: Readings, ratio: float | None, running: int | None, notes: dict[str, str]
    ) -> float | None:
        if readings.algorithm is Algorithm.NONE:
            notes["accept_length"] = "no speculation"
            return None
        # A verify step commits at least one token: less is no accept length but a miscount.
        if ratio is not None and ratio >= 1.0:
            return ratio
        gauges: tuple[tuple[Callable[[], float | None], str], ...] = (
            (lambda: readings.loads.accept_length if readings.loads else None, "the server's last interval"),
            (
                lambda: readings.metrics.accept_length if readings.metrics else None,
                "the server's last interval",
            ),
            (lambda: readings.log[0].accept_len if readings.log else None, "from the log"),
        )
        for read, note in gauges:
            value = finite(read())
            if value is None or value < 1.0:
                continue
            if not running:
                notes["accept_length"] = IDLE
                return None
            notes["accept_length"] = note
            return value
        notes["accept_length"] = readings.metrics_problem or "nothing was verified yet"
        return None


def _either(first: N | None, second: N | None) -> N | None:
    return second if first is None else first


def _retracted(loads: LoadsReading) -> int | None:
    known = [rank.retracted for rank in loads.ranks if rank.retracted is not None]
    return sum(known) if known else None
