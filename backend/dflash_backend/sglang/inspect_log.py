"""What a whole log file tells, in one pass with bounded memory."""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Mapping

from dflash_backend.core.states import StageName
from dflash_backend.core.text import redact
from dflash_backend.sglang.failure import Failure, explain_failure
from dflash_backend.sglang.log import DecodeLine, PrefillLine, ThroughputFilter, read_batch_line, split_line
from dflash_backend.sglang.startup import StartupFacts, StartupTracker

MAX_ROWS = 1000
"""Batch lines kept as rows: the newest."""
_KEPT_LINES = 600
_SAMPLES = 100_000

_RETRACT = re.compile(r"Retract requests|retract(?:ed)? \d+ requests?", re.IGNORECASE)
_JIT = re.compile(r"took [\d.]+ s to compile after serving started")
_ERROR = re.compile(r"^(?:ERROR|CRITICAL)\b|Scheduler hit an exception|^[A-Za-z_][\w.]*(?:Error|Exception): ")
_SETTING = re.compile(
    r"'?\b(?P<key>model_path|served_model_name|port|tp_size|dp_size|pp_size|attention_backend|page_size|"
    r"mem_fraction_static|context_length|max_running_requests|max_total_tokens|disable_cuda_graph|"
    r"disable_overlap_schedule|decode_log_interval|enable_metrics|speculative_algorithm|"
    r"speculative_draft_model_path|speculative_num_draft_tokens|speculative_dflash_block_size|"
    r"speculative_dflash_draft_window_size|speculative_draft_window_size|speculative_ddtree_budget|"
    r"speculative_draft_attention_backend)'?(?:=|: )"
    r"(?P<value>'[^']{0,500}'|\"[^\"]{0,500}\"|[^,)}]{1,60})"
)


class LogSummary:
    """Feed it every line, then ask for ``summary``, ``rows`` and ``notes``."""

    def __init__(self) -> None:
        self.lines = 0
        self._tracker = StartupTracker()
        self._filter = ThroughputFilter()
        self._rows: deque[DecodeLine | PrefillLine] = deque(maxlen=MAX_ROWS)
        self._recent: deque[str] = deque(maxlen=_KEPT_LINES)
        self._decode = self._prefill = self._retractions = self._compiled = self._errors = 0
        self._trusted: deque[float] = deque(maxlen=_SAMPLES)
        self._accept: deque[float] = deque(maxlen=_SAMPLES)
        self._graphs = [0, 0]
        self._last: dict[str, object] = {}
        self._first_stamp: str | None = None
        self._last_stamp: str | None = None
        self._settings: dict[str, object] = {}

    def feed(self, line: str) -> None:
        """Takes one line, sanitised or not."""
        if not line.strip():
            return
        self.lines += 1
        self._recent.append(line)
        batch = read_batch_line(line)
        if batch is not None:
            self._batch(batch)
            return
        split = split_line(line)
        self._stamp(split.stamp)
        self._tracker.feed(line)
        if "server_args=" in line and not self._settings:
            self._settings = {
                m["key"]: _setting(m["value"].strip()) for m in reversed(list(_SETTING.finditer(line)))
            }
        if _RETRACT.search(split.text):
            self._retractions += 1
        if _JIT.search(split.text):
            self._compiled += 1
        if split.level in ("ERROR", "CRITICAL") or _ERROR.search(split.text):
            self._errors += 1

    def _stamp(self, stamp: str | None) -> None:
        if stamp is not None:
            self._first_stamp = self._first_stamp or stamp
            self._last_stamp = stamp

    def _batch(self, batch: DecodeLine | PrefillLine) -> None:
        # It worked until here: what is wrong, if anything, comes later.
        self._recent.clear()
        self._rows.append(batch)
        self._stamp(batch.stamp)
        trusted = self._filter.feed(batch)
        if batch.usage is not None:
            self._last["token_usage"] = batch.usage
        for name in ("running_req", "queue_req"):
            if (value := getattr(batch, name)) is not None:
                self._last[name] = value
        if isinstance(batch, PrefillLine):
            self._prefill += 1
            return
        self._decode += 1
        if trusted is not None:
            self._trusted.append(trusted)
        if batch.accept_len is not None:
            self._accept.append(batch.accept_len)
        if batch.graph is not None:
            self._graphs[batch.graph] += 1

    @property
    def rows(self) -> tuple[DecodeLine | PrefillLine, ...]:
        """The newest batch lines."""
        return tuple(self._rows)

    @property
    def batches(self) -> int:
        """How many batch lines there were in all."""
        return self._decode + self._prefill

    @property
    def failure(self) -> Failure | None:
        """Why the server did not get ready, or fell over after its last batch; None when nothing says so."""
        return explain_failure(self._recent)

    @property
    def facts(self) -> StartupFacts:
        """What the start-up told."""
        return self._tracker.facts

    def summary(self) -> Mapping[str, object]:
        """Counts, the start, throughput (tokens per second; first after a pause left out), speculation."""
        started = self._tracker.stage.name is not StageName.LAUNCH
        graphs = sum(self._graphs)
        return {
            "lines": self.lines,
            "decode_lines": self._decode,
            "prefill_lines": self._prefill,
            "first_stamp": self._first_stamp,
            "last_stamp": self._last_stamp,
            "stage": self._tracker.stage.text() if started else None,
            "ready": self._tracker.ready if started else None,
            "startup": self.facts,
            "settings": self._settings,
            "decode_tok_s": _spread(self._trusted),
            "accept_length": _spread(self._accept),
            "graph_share": self._graphs[1] / graphs if graphs else None,
            "last": self._last,
            "retractions": self._retractions,
            "compiled_while_serving": self._compiled,
            "errors": self._errors,
            "failure": self.failure,
        }

    def notes(self) -> tuple[str, ...]:
        """What to keep in mind when reading the figures."""
        found = []
        if self.batches > len(self._rows):
            found.append(f"the newest {len(self._rows)} of {self.batches} batch lines are kept as rows")
        untrusted = self._decode - len(self._trusted)
        if self._decode and untrusted:
            found.append(f"{untrusted} decode throughput(s) left out: first after a pause, or another rank's")
        if self._compiled:
            found.append("kernels were compiled while serving: figures around those moments are not clean")
        runner = self.facts.draft_runner
        if runner is not None and runner.window is None:
            found.append(
                "draft_window_size=None proves nothing: 0.5.14+ print it with the config's windows in force"
            )
        return tuple(found)


def _setting(printed: str) -> object:
    """A value of ``server_args`` as Python printed it."""
    words: dict[str, object] = {"None": None, "True": True, "False": False}
    if printed in words:
        return words[printed]
    if re.fullmatch(r"-?\d{1,15}", printed):
        return int(printed)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", printed):
        return float(printed)
    return redact(printed.strip("'\""))


def _spread(values: deque[float]) -> Mapping[str, float] | None:
    if not values:
        return None
    return {
        "median": round(statistics.median(values), 4),
        "min": min(values),
        "max": max(values),
        "last": values[-1],
        "count": len(values),
    }
