#!/usr/bin/env python3
"""The reference engine measured: budget x window mode x context on held-out prompts of the reference pair.

python benchmarks/engine.py [--out docs/results/engine] [--quick]

Accept length, decode tokens per second at concurrency 1, draft KV bytes with and without the compact cache,
where a step's time goes, and the peak memory of one engine at 8k tokens of context. Arms are interleaved:
every prompt is decoded by all arms in a fresh random order before the next one, so that a busy machine hits
all arms alike. Rates are the median over prompts and repeats with the quartiles beside it; ratios to plain
decoding are formed prompt by prompt. Writes OUT.json and OUT.md.

"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: what the server runs with

import numpy as np

from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams, StepKind, WindowMode
from dflash_engine.engine import ReferenceEngine, load_engine
from dflash_engine.reference_pair import DRAFTER, TARGET, HeldOutPrompt, read_prompts

PARTS = ("draft", "tree", "target", "sample", "commit")
MEMORY_CONTEXT = 8192
LONG_CONTEXT = 4096
"""From here on half the prompts, once."""


@dataclass(frozen=True)
class Arm:
    """One line of the table; budget None: chain; mode None: plain decoding."""

    mode: WindowMode | None
    budget: int | None = None

    @property
    def name(self) -> str:
        if self.mode is None:
            return "AR"
        return "chain" if self.budget is None else f"tree {self.budget}"


@dataclass
class Sample:
    """One prompt decoded once by one arm."""

    prompt: str
    tokens: int
    steps: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    tokens_out: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Engines:
    """AR, chain and tree engines; budgets and windows of the latter two change live."""

    def __init__(self, context_length: int, *, compact: bool = False) -> None:
        def load(algorithm: Algorithm) -> ReferenceEngine:
            return load_engine(
                EngineConfig(
                    TARGET,
                    DRAFTER,
                    algorithm,
                    context_length=context_length,
                    compact_draft_cache=compact,
                    max_running_requests=1,
                )
            )

        self._plain, self._chain, self._tree = (load(a) for a in Algorithm)

    def of(self, arm: Arm) -> ReferenceEngine:
        if arm.mode is None:
            return self._plain
        if arm.budget is None:
            self._chain.reconfigure(window_mode=arm.mode)
            return self._chain
        self._tree.reconfigure(window_mode=arm.mode, budget=arm.budget)
        return self._tree


def decode(engine: ReferenceEngine, prompt: HeldOutPrompt, new_tokens: int) -> Sample:
    """Decode one prompt; only decode steps are timed, on the clock around ``step``."""
    ids = engine.tokenizer.encode(prompt.text)
    engine.add(Request("bench", ids, SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)))
    sample = Sample(prompt.file, 0, 0, 0.0, dict.fromkeys(PARTS, 0.0))
    while engine.has_work:
        began = time.perf_counter()
        report = engine.step()
        took = time.perf_counter() - began
        sample.tokens_out += [t for o in report.outputs for t in o.token_ids]
        if report.kind is StepKind.DECODE:
            sample.seconds += took
            sample.steps += 1
            sample.tokens += sum(1 + (o.accepted_drafts or 0) for o in report.outputs)
            for part in PARTS:
                sample.parts[part] += getattr(report.timings, part)
    return sample


def measure(
    arms: Sequence[Arm], prompts: Sequence[HeldOutPrompt], new_tokens: int, repeats: int
) -> dict[Arm, list[Sample]]:
    """All samples of one context length, arms interleaved."""
    engines = Engines(prompts[0].context_tokens + new_tokens + 8)
    samples: dict[Arm, list[Sample]] = {arm: [] for arm in arms}
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        for prompt in prompts:
            for arm in (arms[i] for i in rng.permutation(len(arms))):
                samples[arm].append(decode(engines.of(arm), prompt, new_tokens))
            outputs = {tuple(samples[arm][-1].tokens_out) for arm in arms}
            if len(outputs) != 1:
                raise SystemExit(
                    f"{prompt.file}, {prompt.context_tokens} tokens: arms differ in their output"
                )
            print(f"context {prompt.context_tokens}: {prompt.file}", file=sys.stderr, flush=True)
    return samples


def draft_kv_bytes(mode: WindowMode, prompt: HeldOutPrompt, *, compact: bool) -> int:
    """Draft KV bytes held right after the prompt."""
    engine = Engines(prompt.context_tokens + 40, compact=compact).of(Arm(mode))
    engine.add(Request("bytes", engine.tokenizer.encode(prompt.text), SamplingParams(max_new_tokens=8)))
    while engine.stats.used_tokens < prompt.context_tokens - 2:
        engine.step()
    return engine.stats.draft_kv_bytes


def quartiles(values: Sequence[float]) -> list[float]:
    return [round(float(v), 3) for v in np.percentile(values, [25, 50, 75])]


def cell(arm: Arm, samples: Sequence[Sample], plain: Sequence[Sample]) -> dict[str, Any]:
    """One line of the table in figures."""
    seconds, steps = sum(s.seconds for s in samples), sum(s.steps for s in samples)
    first_run = samples[: len({s.prompt for s in samples})]  # decoding is deterministic: repeats add nothing
    return {
        "arm": arm.name,
        "window_mode": None if arm.mode is None else arm.mode.value,
        "budget": arm.budget,
        "accept_length": round(sum(s.tokens for s in first_run) / sum(s.steps for s in first_run), 3),
        "accept_length_per_prompt": quartiles([s.tokens / s.steps for s in first_run]),
        "tok_s": quartiles([s.rate for s in samples]),
        "ratio_to_ar": quartiles([s.rate / p.rate for s, p in zip(samples, plain, strict=True)]),
        "step_ms": round(1000 * seconds / steps, 3),
        "parts_ms": {p: round(1000 * sum(s.parts[p] for s in samples) / steps, 3) for p in PARTS},
        "tree_share": round(sum(s.parts["tree"] for s in samples) / seconds, 4),
        "verify_steps": steps,
    }


def peak_memory() -> dict[str, Any]:
    """Peak resident memory of a process of its own that loads one tree engine and fills 8k tokens of
    context.
    """
    code = f"""
from dflash_engine.api import *
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, TARGET, read_prompts

def peak():
    return next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM"))

n = {MEMORY_CONTEXT}
engine = load_engine(EngineConfig(TARGET, DRAFTER, Algorithm.DDTREE, budget=16, context_length=n))
loaded = peak()
ids = [t for p in read_prompts() for t in engine.tokenizer.encode(p.text)][: n - 64]
engine.add(Request("memory", ids, SamplingParams(max_new_tokens=64, ignore_eos=True)))
while engine.has_work:
    engine.step()
print(loaded, peak())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, peak = (round(int(kib) / 1024, 1) for kib in run.stdout.split())
    return {"context_tokens": MEMORY_CONTEXT, "loaded_mib": loaded, "peak_mib": peak}


def machine() -> dict[str, Any]:
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def markdown(result: dict[str, Any]) -> str:
    """The tables."""
    m, memory = result["machine"], result["memory"]
    how = (
        f"{result['date']}, {m['cores']} cores ({m['cpu']}), numpy {m['numpy']}, {m['blas']}, "
        f"{m['blas_threads']} BLAS thread, load average before the run {m['load_average_before']}. Held-out "
        f"prompts of the reference pair, greedy, {result['new_tokens']} new tokens, one request at a time, "
        "arms interleaved. Made by `benchmarks/engine.py`; every figure is in `engine.json`."
    )
    reading = (
        "Accept length pools all verify steps, bonus included; tok/s (decode steps only) and the ratio to "
        "plain decoding (AR) are medians, quartiles in brackets. All arms gave the same tokens everywhere."
    )
    held = (
        f"Peak memory of one engine with {memory['context_tokens']} tokens of context: "
        f"{memory['peak_mib']} MiB ({memory['loaded_mib']} MiB after loading)."
    )
    out = ["# Reference engine", "", how, "", reading, "", held]
    columns = ("window", "arm", "accept", "tok/s", "x AR", "ms/step", *PARTS)
    for context in result["contexts"]:
        runs = f"{context['prompts']} prompts, {context['repeats']} repeats"
        out += ["", f"## Context {context['context_tokens']} ({runs})", ""]
        out += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        for c in context["cells"]:
            low, mid, high = c["tok_s"]
            rlow, rmid, rhigh = c["ratio_to_ar"]
            parts = " | ".join(f"{c['parts_ms'][p]:.2f}" for p in PARTS)
            out.append(
                f"| {c['window_mode'] or '–'} | {c['arm']} | {c['accept_length']:.2f} | "
                f"{mid:.0f} ({low:.0f}–{high:.0f}) | {rmid:.2f} ({rlow:.2f}–{rhigh:.2f}) | "
                f"{c['step_ms']:.2f} | {parts} |"
            )
        out += ["", "| window | draft KV bytes | with compact cache |", "| --- | --- | --- |"]
        out += [
            f"| {b['window_mode']} | {b['plain']:,} | {b['compact']:,} |" for b in context["draft_kv_bytes"]
        ]
    return "\n".join(out) + "\n"


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/engine"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 6, 8, 16, 32, 64])
    parser.add_argument("--prompts", type=int, default=4, help="per context length")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a small table, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.contexts, args.budgets, args.prompts, args.repeats = [64], [4, 8], 2, 1
    budgets: list[int | None] = [None, *args.budgets]
    arms = [Arm(None), *(Arm(mode, b) for mode in WindowMode for b in budgets)]
    result: dict[str, Any] = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "new_tokens": args.new_tokens,
        "repeats": args.repeats,
        "memory": peak_memory(),
        "contexts": [],
    }
    for length in args.contexts:
        long = length >= LONG_CONTEXT  # prefill takes most of the time there
        wanted = [p for p in read_prompts() if p.context_tokens == length]
        prompts, repeats = wanted[: args.prompts // 2 if long else args.prompts], 1 if long else args.repeats
        samples = measure(arms, prompts, args.new_tokens, repeats)
        plain = samples[arms[0]]
        result["contexts"].append(
            {
                "context_tokens": length,
                "prompts": len(prompts),
                "repeats": repeats,
                "cells": [cell(arm, samples[arm], plain) for arm in arms],
                "draft_kv_bytes": [
                    {
                        "window_mode": mode.value,
                        "plain": draft_kv_bytes(mode, prompts[0], compact=False),
                        "compact": draft_kv_bytes(mode, prompts[0], compact=True),
                    }
                    for mode in WindowMode
                ],
            }
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
