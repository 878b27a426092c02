"""``engine verify``: is speculative output equal to plain decoding, and what does each arm accept?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from .api import (
    Algorithm,
    EngineConfig,
    EngineConfigError,
    Request,
    RequestError,
    SamplingParams,
    StepKind,
    WindowMode,
)
from .engine import ReferenceEngine, load_engine
from .reference_pair import DRAFTER, PROMPTS, TARGET, HeldOutPrompt, read_prompts

DEFAULT_BUDGETS = (4, 8, 16, 32)
DEFAULT_NEW_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding that is compared."""

    name: str
    algorithm: Algorithm
    budget: int | None = None
    window_mode: WindowMode = WindowMode.DECLARED


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first token at which an arm differs from plain decoding on one prompt."""

    arm: str
    file: str
    context_tokens: int
    at: int
    expected: int | None
    """Plain decoding's token; None: it had ended."""
    got: int | None
    top_gap: float | None
    """Plain decoding's logit gap between its two best tokens there: a gap near float32 rounding (1e-5) is a
    near tie, a larger one a fault of the engine. None when sampling."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What one arm did over the prompts of one context length (or of all, ``context_tokens`` None)."""

    arm: str
    context_tokens: int | None
    prompts: int
    tokens: int
    verify_steps: int | None
    """None for AR."""
    accept_length: float | None
    """Committed tokens per verify step, bonus included (the first token, made by the prefill, not counted).
    """
    decode_tok_s: float | None
    """Tokens per second of the decode steps, this machine, one request at a time; not a benchmark."""
    mismatches: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Everything ``run_verify`` found."""

    results: tuple[ArmResult, ...]
    mismatches: tuple[Mismatch, ...]
    new_tokens: int
    temperature: float
    seconds: float

    @property
    def exit_code(self) -> int:
        """0: all arms equal plain decoding; 1: some does not."""
        return 1 if self.mismatches else 0

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        return {
            "schema": 1,
            "equal": not self.mismatches,
            "new_tokens": self.new_tokens,
            "temperature": self.temperature,
            "seconds": round(self.seconds, 2),
            "arms": [_as_dict(r) for r in self.results],
            "mismatches": [_as_dict(m) for m in self.mismatches],
        }

    def lines(self) -> list[str]:
        """The same as text, one line per arm and context length."""
        names = f"{'arm':<18} {'context':>7} {'prompts':>7} {'tokens':>7} {'accept':>7} {'tok/s':>7}"
        out = [f"{names}  equal to AR"]
        for r in self.results:
            accept = "–" if r.accept_length is None else f"{r.accept_length:.2f}"
            rate = "–" if r.decode_tok_s is None else f"{r.decode_tok_s:.0f}"
            context = "all" if r.context_tokens is None else str(r.context_tokens)
            equal = (
                "reference" if r.verify_steps is None else f"no: {r.mismatches}" if r.mismatches else "yes"
            )
            out.append(
                f"{r.arm:<18} {context:>7} {r.prompts:>7} {r.tokens:>7} {accept:>7} {rate:>7}  {equal}"
            )
        for m in self.mismatches:
            gap = "" if m.top_gap is None else f", logit gap {m.top_gap:.2g}"
            out.append(
                f"mismatch: {m.arm}, {m.file} at {m.context_tokens} tokens: output token {m.at} is {m.got}, "
                f"plain decoding gives {m.expected}{gap}"
            )
        verdict = "differs from" if self.mismatches else "equals"
        how = "greedy" if self.temperature == 0 else f"sampled (temperature {self.temperature:g}, same seeds)"
        out.append(f"Speculative output {verdict} plain decoding, {how}; {self.seconds:.1f} s.")
        return out


def _as_dict(item: ArmResult | Mismatch) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


@dataclass(slots=True)
class _Run:
    prompt: HeldOutPrompt
    tokens: list[int]
    steps: int
    decoded: int
    seconds: float


def default_arms(
    budgets: Sequence[int], window_modes: Sequence[WindowMode] = (WindowMode.DECLARED,)
) -> list[Arm]:
    """Chain in every window mode, trees of every budget in the first one."""
    arms = [
        Arm("chain" if m is WindowMode.DECLARED else f"chain/{m}", Algorithm.DFLASH, window_mode=m)
        for m in window_modes
    ]
    return arms + [Arm(f"ddtree {b}", Algorithm.DDTREE, b, window_modes[0]) for b in budgets]


def run_verify(
    config: EngineConfig,
    prompts: Sequence[HeldOutPrompt],
    arms: Sequence[Arm],
    *,
    new_tokens: int = DEFAULT_NEW_TOKENS,
    temperature: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Decode every prompt plainly and with every arm, and compare token by token.

    ``config`` gives paths and limits; its algorithm, budget and window mode are the arms' business. Prompts
    longer than the context allows raise ``RequestError``; settings that cannot run, ``EngineConfigError``.
    End-of-text tokens are ignored, so that every run has ``new_tokens`` tokens, as in evaluation.json.
    """
    started = perf_counter()
    tell = progress or (lambda _: None)
    plain = replace(config, algorithm=Algorithm.NONE, budget=None, topk=None)
    engine = load_engine(plain)
    references: list[_Run] = []
    for prompt in prompts:
        tell(f"AR: {prompt.file}, {prompt.context_tokens} tokens")
        references.append(_decode(engine, prompt, new_tokens, temperature))
    results = _summarise("AR", references, [], None)
    mismatches: list[Mismatch] = []
    for arm in arms:
        settings = replace(
            config,
            algorithm=arm.algorithm,
            budget=arm.budget,
            topk=config.topk if arm.algorithm is Algorithm.DDTREE else None,
            window_mode=arm.window_mode,
        )
        speculative = load_engine(settings)
        runs, found = [], []
        for reference in references:
            tell(f"{arm.name}: {reference.prompt.file}, {reference.prompt.context_tokens} tokens")
            run = _decode(speculative, reference.prompt, new_tokens, temperature)
            runs.append(run)
            if run.tokens != reference.tokens:
                found.append(_mismatch(arm.name, engine, reference, run, temperature))
        results += _summarise(arm.name, runs, found, sum(r.steps for r in runs))
        mismatches += found
    return VerifyReport(tuple(results), tuple(mismatches), new_tokens, temperature, perf_counter() - started)


def _decode(engine: ReferenceEngine, prompt: HeldOutPrompt, new_tokens: int, temperature: float) -> _Run:
    ids = engine.tokenizer.encode(prompt.text)
    sampling = SamplingParams(temperature=temperature, max_new_tokens=new_tokens, ignore_eos=True, seed=0)
    engine.add(Request("verify", ids, sampling))
    run = _Run(prompt, [], 0, 0, 0.0)
    while engine.has_work:
        report = engine.step()
        run.tokens += [t for o in report.outputs for t in o.token_ids]
        if report.kind is StepKind.DECODE:
            run.steps += 1
            run.decoded += sum(1 + (o.accepted_drafts or 0) for o in report.outputs)
            run.seconds += report.timings.total
    return run


def _summarise(
    arm: str, runs: Sequence[_Run], found: Sequence[Mismatch], verify_steps: int | None
) -> list[ArmResult]:
    contexts = sorted({r.prompt.context_tokens for r in runs})
    groups: list[int | None] = [*contexts, None] if len(contexts) > 1 else list(contexts)
    out = []
    for context in groups:
        chosen = [r for r in runs if context in (None, r.prompt.context_tokens)]
        steps, decoded = sum(r.steps for r in chosen), sum(r.decoded for r in chosen)
        seconds = sum(r.seconds for r in chosen)
        out.append(
            ArmResult(
                arm,
                context,
                len(chosen),
                sum(len(r.tokens) for r in chosen),
                None if verify_steps is None else steps,
                None if verify_steps is None or not steps else round(decoded / steps, 4),
                round(decoded / seconds, 1) if seconds > 0 else None,
                sum(context in (None, m.context_tokens) for m in found),
            )
        )
    return out


def _mismatch(arm: str, engine: ReferenceEngine, reference: _Run, run: _Run, temperature: float) -> Mismatch:
    pairs = zip(reference.tokens, run.tokens, strict=False)
    shorter = min(len(reference.tokens), len(run.tokens))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    gap = None
    if temperature == 0:
        logits = engine.next_logits(engine.tokenizer.encode(reference.prompt.text) + reference.tokens[:at])
        second, first = np.sort(logits)[-2:].tolist()
        gap = float(first - second)
    return Mismatch(
        arm,
        reference.prompt.file,
        reference.prompt.context_tokens,
        at,
        reference.tokens[at] if at < len(reference.tokens) else None,
        run.tokens[at] if at < len(run.tokens) else None,
        gap,
    )


# -- command line
# ------------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers like 4,8,16") from None
    if any(v < 1 for v in values):
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be at least 1")
    return values


def build_parser(prog: str = "dflash-engine verify") -> argparse.ArgumentParser:
    """The arguments of ``verify``."""
    p = argparse.ArgumentParser(
        prog=prog, description="Compare speculative output with plain decoding on held-out prompts."
    )
    p.add_argument("--model-path", type=Path, default=TARGET, help="target folder (default: reference pair)")
    p.add_argument("--speculative-draft-model-path", type=Path, default=DRAFTER, help="drafter folder")
    p.add_argument("--prompts", type=Path, default=PROMPTS, help="prompts.json (default: reference pair)")
    p.add_argument("--contexts", type=_numbers, default=[64, 256, 1024], help="prompt lengths, e.g. 256,1024")
    p.add_argument("--limit", type=int, default=4, help="prompts per length (0: all)")
    p.add_argument("--budgets", type=_numbers, default=list(DEFAULT_BUDGETS), help="tree budgets, e.g. 4,8")
    p.add_argument("--window-modes", default="declared", help="comma-separated: declared,ignored,clamped")
    p.add_argument("--compact-draft-cache", action="store_true", help="give back draft KV out of the window")
    p.add_argument("--max-new-tokens", type=int, default=DEFAULT_NEW_TOKENS)
    p.add_argument("--temperature", type=float, default=0.0, help="0: greedy; else sampled, same seeds")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return p


def main(argv: Sequence[str], *, prog: str = "dflash-engine verify") -> int:
    """Exit codes: 0 equal, 1 not equal, 2 bad usage or a model that this engine cannot run."""
    args = build_parser(prog).parse_args(argv)
    try:
        report = run_verify(
            EngineConfig(
                args.model_path,
                args.speculative_draft_model_path,
                compact_draft_cache=args.compact_draft_cache,
            ),
            _chosen_prompts(args.prompts, args.contexts, args.limit),
            default_arms(args.budgets, _modes(args.window_modes)),
            new_tokens=args.max_new_tokens,
            temperature=args.temperature,
            progress=_progress if sys.stderr.isatty() else None,
        )
    except (EngineConfigError, RequestError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        print("\n".join(report.lines()))
    return report.exit_code


def _chosen_prompts(path: Path, contexts: Sequence[int], limit: int) -> list[HeldOutPrompt]:
    """The first ``limit`` prompts (0: all) of each length."""
    prompts, chosen = read_prompts(path), []
    for context in contexts:
        of_length = [p for p in prompts if p.context_tokens == context]
        chosen += of_length[: limit or None]
    if not chosen:
        lengths = sorted({p.context_tokens for p in prompts})
        raise EngineConfigError(
            "--contexts", f"no prompts of {contexts} tokens, only {lengths}", where=str(path)
        )
    return chosen


def _modes(text: str) -> list[WindowMode]:
    known = [m.value for m in WindowMode]
    names = text.split(",")
    for name in names:
        if name not in known:
            raise EngineConfigError("--window-modes", f"knows {', '.join(known)}, not {name!r}")
    return [WindowMode(name) for name in names]


def _progress(line: str) -> None:
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
