"""Replay stage: accept lengths without running the loop.

The greedy output is generated once, the drafter runs at every position of it in one batch, and the accept
walk is simulated along it. Equal to the loop's accept lengths whenever speculative output equals greedy
output.

"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor

from .corpus import load_held_out
from .evaluation import MODES, arms, best_first_tree, ends_in_loop, held_out_prompts, report
from .models import BLOCK, MASK_ID, WIDTH, Drafter, Target, block_biases, load_model
from .optimisation import pick_device
from .rollouts import greedy_rollout


def accepted(ids: list[int], at: int, values: Tensor, candidates: Tensor, budget: int | None) -> int:
    """Drafts accepted when the bonus token is ``ids[at]``; values and candidates ``[15, k]`` by falling
    value.
    """
    count = 0
    if budget is None:
        while count < BLOCK - 1 and candidates[count, 0] == ids[at + 1 + count]:
            count += 1
        return count
    tokens, parents, _ = best_first_tree(values.tolist(), candidates.tolist(), budget)
    child = {(parents[j], tokens[j]): j + 1 for j in range(len(tokens))}
    node = 0
    while count < BLOCK - 1 and (node, ids[at + 1 + count]) in child:
        node = child[node, ids[at + 1 + count]]
        count += 1
    return count


@torch.no_grad()
def main(args: argparse.Namespace) -> None:
    """The stage: writes accept lengths to ``--out`` after every prompt."""
    device = pick_device(args.device)
    torch.set_float32_matmul_precision("highest")
    held_out, offsets = load_held_out(args.data)
    target, drafter = load_model(Target, args.target, device), load_model(Drafter, args.drafter, device)
    rows: list[dict[str, Any]] = []
    for length, wanted in args.plan:
        stretches = held_out_prompts(held_out, offsets, [(length, wanted)], args.new)
        prompts = torch.tensor([p for _, p in stretches], device=device)
        anchors = torch.arange(length, length + args.new, device=device)[None]
        for i, sequence in enumerate(greedy_rollout(target, prompts, args.new + BLOCK)):
            context, ids = length + args.new, sequence.tolist()
            features = target.features(sequence[None, :context])
            blocks = torch.full((1, args.new, BLOCK), MASK_ID, device=device)
            blocks[0, :, 0] = sequence[anchors[0]]
            x = target.embed_tokens(blocks.flatten(1))
            top = {}
            for mode in MODES:
                biases, positions = block_biases(anchors, context, x.dtype, mode)
                hidden = drafter(x, features, positions, biases).view(args.new, BLOCK, WIDTH)[:, 1:]
                top[mode] = target.head(hidden).log_softmax(-1).topk(64, -1)
            loop = ends_in_loop(ids[length : length + args.new])
            row: dict[str, Any] = {"prompt": i, "ctx": length, "loop": loop, "runs": {}}
            for name, mode, budget in arms(args.budgets):
                at, steps = length, []
                while at - length + 1 < args.new:
                    values, candidates = (t[at - length] for t in top[mode])
                    steps.append(accepted(ids, at, values, candidates, budget) + 1)
                    at += steps[-1]
                row["runs"][name] = {"steps": steps, "mismatch_at": None}
            rows.append(row)
            args.out.write_text(json.dumps(report(rows, new_tokens=args.new), indent=1))
        print(f"context {length}: {len(stretches)} prompts done", flush=True)
