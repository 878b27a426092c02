#!/usr/bin/env python3
"""Train and evaluate the reference pair: a small Qwen3 target and a DFlash drafter with sliding layers.

The pair is shipped as data of dflash_engine; this is how it was made. Stages, in order, with the settings
used on one NVIDIA H200 (about twelve minutes; on a CPU the stages run too, but only for trying them out):

    train_reference_pair.py corpus  --roots DIR ... --out DATA
    train_reference_pair.py target  --data DATA --out TARGET --seconds 320
    train_reference_pair.py rollout --data DATA --target TARGET --out ROLLOUTS --seconds 45
    train_reference_pair.py drafter --data DATA --target TARGET --phase text --out DRAFTER0 --seconds 100
    train_reference_pair.py drafter --data DATA --target TARGET --phase greedy --rollouts ROLLOUTS \\
                                    --init DRAFTER0 --out DRAFTER --seconds 290
    train_reference_pair.py eval    --data DATA --target TARGET --drafter DRAFTER --out evaluation.json
    train_reference_pair.py replay  --data DATA --target TARGET --drafter DRAFTER --out replay.json

corpus   Python files below --roots (the CPython standard library and installed packages), deduplicated; 3 %
         of the files, chosen by a hash of their path, are held out; trains the byte-level BPE tokenizer.
target   next-token loss on sequences of 2048 tokens, from 65 % of the time on every other step of 8192.
rollout  the target's own greedy continuations of training text: what the drafter has to predict in use.
drafter  phase text: labels are the target's argmax at teacher-forced positions of the corpus. Phase greedy:
         four batches in five are rollouts. Cross-entropy, slot i weighted by exp(-(i - 1) / gamma).
eval     the real loop: chain and trees against greedy decoding, token by token.
replay   the same accept lengths, faster: greedy output once, then drafts at all of its positions.

Needs torch and tokenizers, which are no dependencies of the project.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reference_pair import corpus, drafter_training, evaluation, replay, rollouts, target_training


def plan(text: str) -> list[tuple[int, int]]:
    """``256:48,1024:48`` -> prompts of 256 tokens, 48 of them, and so on."""
    return [(int(length), int(count)) for length, count in (part.split(":") for part in text.split(","))]


def build_parser() -> argparse.ArgumentParser:
    """All stages and their settings; the defaults are those of the shipped pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = parser.add_subparsers(dest="stage", required=True)

    stage = stages.add_parser("corpus")
    stage.add_argument("--roots", type=Path, nargs="+", required=True)
    stage.add_argument("--out", type=Path, required=True)
    stage.add_argument("--package-cap", type=int, default=16_000_000, help="characters per top-level package")
    stage.add_argument("--tokenizer-chars", type=int, default=30_000_000)
    stage.set_defaults(run=corpus.main)

    def add(name: str, *, timed: bool = True) -> argparse.ArgumentParser:
        stage = stages.add_parser(name)
        stage.add_argument("--data", type=Path, required=True, help="output of the corpus stage")
        stage.add_argument("--out", type=Path, required=True)
        stage.add_argument("--device", default=None, help="default: cuda if there is one, else cpu")
        if timed:
            stage.add_argument("--seconds", type=float, default=320)
            stage.add_argument("--no-compile", dest="compile", action="store_false")
        return stage

    stage = add("target")
    stage.add_argument("--lr", type=float, default=3e-3)
    stage.add_argument("--tokens", type=int, default=98304, help="per optimizer step")
    stage.add_argument("--seq", type=int, default=2048)
    stage.add_argument("--long-seq", type=int, default=8192)
    stage.add_argument("--val-limit", type=int, default=2_000_000)
    stage.set_defaults(run=target_training.main)

    stage = add("rollout")
    stage.add_argument("--target", type=Path, required=True)
    stage.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 8192])
    stage.add_argument("--batch-tokens", type=int, default=2_097_152)
    stage.set_defaults(run=rollouts.main)

    stage = add("drafter")
    stage.add_argument("--target", type=Path, required=True)
    stage.add_argument("--phase", choices=["text", "greedy"], required=True)
    stage.add_argument("--rollouts", type=Path, help="phase greedy: output of the rollout stage")
    stage.add_argument("--init", type=Path, help="drafter to start from")
    stage.add_argument("--lr", type=float, default=2e-3)
    stage.add_argument("--gamma", type=float, default=5.0, help="decay of the slot weights")
    stage.add_argument("--anchors", type=int, default=1024, help="blocks per optimizer step")
    stage.add_argument("--text-blocks", type=int, default=64, help="blocks per text sequence")
    stage.add_argument("--roll-blocks", type=int, default=16, help="blocks per rollout")
    stage.add_argument("--seq", type=int, default=2048)
    stage.add_argument("--long-seq", type=int, default=8192)
    stage.set_defaults(run=drafter_training.main)

    for name, run, default in (
        ("eval", evaluation.main, "8192:12,4096:48,1024:48,256:48"),
        ("replay", replay.main, "256:48,1024:48"),
    ):
        stage = add(name, timed=False)
        stage.add_argument("--target", type=Path, required=True)
        stage.add_argument("--drafter", type=Path, required=True)
        stage.add_argument("--plan", type=plan, default=plan(default), help="LENGTH:PROMPTS,...")
        stage.add_argument("--budgets", type=int, nargs="+", default=[4, 8, 16, 32, 64])
        stage.add_argument("--new", type=int, default=96, help="tokens to generate per prompt")
        stage.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    arguments = build_parser().parse_args()
    arguments.run(arguments)
