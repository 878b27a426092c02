"""Everything asked of one SGLang server: prompts alone and together, cached, retracted, aborted.

The KV pool is so small that requests wait and are retracted; prompts are prefilled in chunks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dflash_engine.reference_pair import TARGET, read_prompts
from dflash_sglang import report
from rigs.sglang_cpu.rig import Server
from rigs.sshd import poll_until

NEW = 48
"""Tokens of a continuation."""
POOL = 1500
OPTIONS = ("--chunked-prefill-size", "256", "--schedule-conservativeness", "0.05")
PROBE_MIN = 600
"""Cached tokens from which on draft layers are probed: well beyond the window, so that both sides show."""
PROBE_MIN_BOUNDED = 200
"""The same where the window flag keeps 256 tokens visible at most."""


@cache
def prompts(context: int) -> list[list[int]]:
    """The reference pair's held-out prompts of a length, in tokens."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [prompt.text for prompt in read_prompts() if prompt.context_tokens == context]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def measured() -> list[list[int]]:
    """Prompts whose accept length is compared."""
    return [*prompts(256)[:2], *prompts(1024)[:3]]


def mixed() -> list[list[int]]:
    """Eight prompts of very different lengths, some with a common beginning."""
    long = prompts(1024)[3]
    return [*prompts(64)[:2], long[:3], long[:17], prompts(256)[2], long[:255], long[:700], prompts(1024)[4]]


@dataclass(frozen=True)
class Answers:
    """All that one server said."""

    alone: list[Any]
    together: list[Any]
    again: list[Any]
    longer: list[Any]
    retracted: list[Any]
    beside: list[Any]
    aborted: Any
    report: dict[str, Any] | None
    logged: dict[str, Any] | None
    probes: list[dict[str, Any]]
    log: str

    @property
    def outputs(self) -> dict[str, list[list[int]]]:
        """Tokens by situation; a short conversation has only the first two."""
        situations = {
            "alone": self.alone,
            "together": self.together,
            "again": self.again,
            "longer": self.longer,
            "retracted": self.retracted,
            "beside an abort": self.beside,
        }
        return {name: [answer["output_ids"] for answer in said] for name, said in situations.items() if said}

    @property
    def steps(self) -> list[int]:
        """Verify steps of each measured prompt."""
        return [answer["meta_info"]["spec_verify_ct"] for answer in self.alone]


def hold(server: Server, probe: Path, *, whole: bool) -> Answers:
    """The conversation, ``whole`` or short. ``probe``: where the test bed writes its attention probes."""
    alone = [server.generate(prompt, NEW) for prompt in measured()]
    again, longer, retracted, beside, aborted = [], [], [], [], None
    if whole:  # the last long prompt is still cached
        again = [server.generate(measured()[-1], NEW)]
        longer = [server.generate(measured()[-1] + alone[-1]["output_ids"] + [700, 800, 900], NEW)]
    together = server.generate(mixed(), NEW)
    if whole:
        retracted = server.generate([prompt[:20] for prompt in prompts(1024)[:8]], 280)
        aborted, beside = _abort_one(server)
    log = server.log_text()
    lines = [line.split(report.LOG_PREFIX)[1] for line in log.splitlines() if report.LOG_PREFIX in line]
    return Answers(
        alone=alone,
        together=together,
        again=again,
        longer=longer,
        retracted=retracted,
        beside=beside,
        aborted=aborted,
        report=server.get("/server_info")["internal_states"][0].get(report.INTERNAL_STATE_KEY),
        logged=json.loads(lines[0]) if lines else None,
        probes=_read(probe),
        log=log,
    )


def _abort_one(server: Server) -> tuple[Any, list[Any]]:
    """A request that is aborted while it runs beside two others; all three answers."""
    endless = {"temperature": 0, "max_new_tokens": 1000, "ignore_eos": True}
    with ThreadPoolExecutor(4) as pool:
        body = {"rid": "endless", "input_ids": prompts(64)[3], "sampling_params": endless}
        stopped = pool.submit(server.post, "/generate", body)
        poll_until(lambda: _running(server) > 0, what="a running request")
        others = [pool.submit(server.generate, prompt, NEW) for prompt in prompts(256)[4:6]]
        poll_until(lambda: _running(server) > 1, what="requests beside it")
        server.post("/abort_request", {"rid": "endless"})
        return stopped.result(), [future.result() for future in others]


def _running(server: Server) -> int:
    loads: Sequence[dict[str, Any]] = server.get("/v1/loads")["loads"]
    return int(loads[0]["num_running_reqs"])


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
