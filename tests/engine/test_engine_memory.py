"""Memory of one engine, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_MIB = 300

PROGRAM = """
from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, TARGET, read_prompts

engine = load_engine(EngineConfig(TARGET, DRAFTER, Algorithm.DDTREE, budget=16, context_length=8192))
ids = [t for p in read_prompts() for t in engine.tokenizer.encode(p.text)][:8160]
engine.add(Request("long", ids, SamplingParams(max_new_tokens=32, ignore_eos=True)))
used = 0
while engine.has_work:
    engine.step()
    used = max(used, engine.stats.used_tokens)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(used, int(peak) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_one_engine_at_8k_context() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=280, env=environment
    )
    assert run.returncode == 0, run.stderr
    used, peak = map(int, run.stdout.split())
    assert used > 8160
    assert peak < LIMIT_MIB
