"""Evaluation stage: the real speculative loop in torch, against greedy decoding token by token."""

from __future__ import annotations

import argparse
import heapq
import json
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .corpus import load_held_out
from .models import (
    BLOCK,
    DRAFT_LAYERS,
    HEAD_DIM,
    KV_HEADS,
    LAYER_TYPES,
    MASK_ID,
    TARGET_LAYERS,
    WINDOW,
    Drafter,
    Target,
    expand_kv,
    load_model,
    rope_table,
)
from .optimisation import pick_device

MODES = ("swa", "all_full", "all_window")
"""As trained; every layer full and both ways; every layer the last WINDOW tokens and the block, both ways."""


class Cache:
    """K/V of one request, ``n`` committed positions."""

    def __init__(self, layers: int, columns: int, device: str) -> None:
        shape = (1, KV_HEADS, columns, HEAD_DIM)
        self.k = [torch.zeros(shape, device=device) for _ in range(layers)]
        self.v = [torch.zeros_like(k) for k in self.k]
        self.n = 0

    def past(self) -> list[tuple[Tensor, Tensor]]:
        return [(k[:, :, : self.n], v[:, :, : self.n]) for k, v in zip(self.k, self.v, strict=True)]

    def append(self, new: list[tuple[Tensor, Tensor]], rows: Tensor | None = None) -> None:
        """Commit the given rows of the new K/V (None: all)."""
        for layer, pair in enumerate(new):
            k, v = pair if rows is None else (pair[0][:, :, rows], pair[1][:, :, rows])
            self.k[layer][:, :, self.n : self.n + k.shape[2]] = k
            self.v[layer][:, :, self.n : self.n + k.shape[2]] = v
        self.n += k.shape[2]


class Loop:
    """One request at a time, eager, float32. Drafter context: positions 0..n-1, the bonus token excluded."""

    def __init__(self, target: Target, drafter: Drafter, device: str) -> None:
        self.target, self.drafter, self.device = target, drafter, device

    def prefill(self, prompt: list[int], room: int) -> tuple[Cache, Cache, int]:
        """Target cache, drafter cache, first bonus token."""
        ids = torch.tensor(prompt, device=self.device)[None]
        columns = len(prompt) + room
        cache = Cache(TARGET_LAYERS, columns, self.device)
        context = Cache(DRAFT_LAYERS, columns, self.device)
        hidden, features, kv = self.target.step(
            ids, torch.arange(len(prompt), device=self.device)[None], None, None
        )
        cache.append(kv)
        self.add_context(context, features)
        return cache, context, int(self.target.head(hidden[:, -1]).argmax())

    def add_context(self, context: Cache, features: Tensor) -> None:
        x = self.drafter.project(features)
        rope = rope_table(torch.arange(context.n, context.n + x.shape[1], device=self.device)[None])
        context.append([layer.self_attn.kv(x, rope) for layer in self.drafter.layers])

    def draft(self, context: Cache, bonus: int, mode: str) -> Tensor:
        """Log-probabilities ``[15, vocabulary]`` of slots 1..15."""
        n = context.n
        block = torch.full((1, BLOCK), MASK_ID, device=self.device)
        block[0, 0] = bonus
        x = self.target.embed_tokens(block)
        rope = rope_table(torch.arange(n, n + BLOCK, device=self.device)[None])
        slots = torch.arange(BLOCK, device=self.device)
        for layer, kind, (past_k, past_v) in zip(
            self.drafter.layers, LAYER_TYPES, context.past(), strict=True
        ):
            h = layer.input_layernorm(x)
            q = layer.self_attn.q(h, rope)
            k, v = layer.self_attn.kv(h, rope)
            column = torch.arange(n + BLOCK, device=self.device)[None]
            position = (n + slots)[:, None]
            seen = torch.ones(BLOCK, n + BLOCK, dtype=torch.bool, device=self.device)
            if mode == "swa" and kind == "sliding_attention":
                seen = (column <= position) & (column > position - WINDOW)
            elif mode == "all_window":
                seen = (column >= n - WINDOW).expand(BLOCK, -1)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, expand_kv(torch.cat([past_k, k], 2)), expand_kv(torch.cat([past_v, v], 2)), attn_mask=seen
            )
            x = layer.finish(x, mixed)
        return self.target.head(self.drafter.norm(x))[0, 1:].log_softmax(-1)

    def greedy(self, prompt: list[int], new: int) -> list[int]:
        """Plain decoding."""
        cache, _, token = self.prefill(prompt, new)
        out = [token]
        while len(out) < new:
            position = torch.tensor([[cache.n]], device=self.device)
            hidden, _, kv = self.target.step(
                torch.tensor([[out[-1]]], device=self.device), position, cache.past(), None
            )
            cache.append(kv)
            out.append(int(self.target.head(hidden[:, -1]).argmax()))
        return out

    def speculative(
        self, prompt: list[int], new: int, mode: str, budget: int | None
    ) -> tuple[list[int], list[int]]:
        """Chain (budget None) or tree; returns the output and the committed tokens of every verify step."""
        cache, context, bonus = self.prefill(prompt, new + 2 * BLOCK + (budget or BLOCK))
        out, steps = [bonus], []
        while len(out) < new:
            log_probs = self.draft(context, bonus, mode)
            if budget is None:
                drafts = log_probs.argmax(-1).tolist()
                parents, depths = list(range(BLOCK - 1)), list(range(1, BLOCK))
            else:
                values, ids = log_probs.topk(min(budget, 64), dim=-1)
                drafts, parents, depths = best_first_tree(values.tolist(), ids.tolist(), budget)
            tokens, parents, depths = [bonus, *drafts], [-1, *parents], [0, *depths]
            count, n = len(tokens), cache.n
            own = np.zeros((count, count), dtype=bool)
            for i in range(count):
                if i:
                    own[i] = own[parents[i]]
                own[i, i] = True
            before = torch.ones(count, n, dtype=torch.bool, device=self.device)
            mask = torch.cat([before, torch.from_numpy(own).to(self.device)], 1)
            positions = torch.tensor([depths], device=self.device) + n
            hidden, features, kv = self.target.step(
                torch.tensor([tokens], device=self.device), positions, cache.past(), mask
            )
            chosen = self.target.head(hidden)[0].argmax(-1).tolist()
            child = {(parents[i], tokens[i]): i for i in range(1, count)}
            path = [0]
            while (path[-1], chosen[path[-1]]) in child:
                path.append(child[path[-1], chosen[path[-1]]])
            rows = torch.tensor(path, device=self.device)
            cache.append(kv, rows)
            self.add_context(context, features[:, rows])
            bonus = chosen[path[-1]]
            out += [tokens[i] for i in path[1:]] + [bonus]
            steps.append(len(path))
        return out[:new], steps


def best_first_tree(
    values: list[list[float]], ids: list[list[int]], budget: int
) -> tuple[list[int], list[int], list[int]]:
    """Nodes by falling cumulative log-probability: tokens, parents (index into [root] + nodes), depths."""
    tokens, parents, depths = [], [], []
    heap = [(-values[0][0], 1, 0, 0)]  # (-score, depth, rank, parent)
    while heap and len(tokens) < budget:
        score, depth, rank, parent = heapq.heappop(heap)
        row = values[depth - 1]
        tokens.append(ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        if rank + 1 < len(row):
            heapq.heappush(heap, (score + row[rank] - row[rank + 1], depth, rank + 1, parent))
        if depth < len(values):
            heapq.heappush(heap, (score - values[depth][0], depth + 1, 0, len(tokens)))
    return tokens, parents, depths


def arms(budgets: list[int]) -> list[tuple[str, str, int | None]]:
    """(name, mode, budget) of everything that is measured."""
    chains = [("chain" if m == "swa" else f"chain/{m}", m, None) for m in MODES]
    trees: list[tuple[str, str, int | None]] = [(f"ddtree{b}", "swa", b) for b in budgets]
    return [*chains, *trees, ("ddtree16/all_full", "all_full", 16)]


def ends_in_loop(tokens: list[int], tail: int = 48, longest: int = 24) -> bool:
    """Whether the last tokens repeat with a short period."""
    last = tokens[-tail:]
    return any(last[p:] == last[:-p] for p in range(1, longest + 1))


def held_out_prompts(
    ids: np.ndarray, offsets: np.ndarray, plan: list[tuple[int, int]], extra: int
) -> list[tuple[int, list[int]]]:
    """(length, tokens): random stretches of held-out files, the same for the same plan."""
    rng = np.random.default_rng(7)
    out = []
    for length, wanted in plan:
        sizes = np.diff(offsets)
        fits = np.flatnonzero(sizes >= length + extra)
        for i in rng.choice(fits, size=min(wanted, len(fits)), replace=False):
            start = offsets[i] + rng.integers(0, sizes[i] - length - extra + 1)
            out.append((length, ids[start : start + length].astype(np.int64).tolist()))
    return out


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Accept length per context length and arm, pooled over steps and as mean of the prompts' means."""
    out: dict[str, Any] = {}
    for length in sorted({r["ctx"] for r in rows}):
        chosen = [r for r in rows if r["ctx"] == length]
        methods = {}
        for name in chosen[0]["runs"]:
            runs = [r["runs"][name] for r in chosen]
            steps = [s for x in runs for s in x["steps"]]
            methods[name] = {
                "accept_length": round(sum(steps) / len(steps), 3),
                "verify_steps": len(steps),
                "committed": sum(steps),
                "mean_of_prompt_means": round(float(np.mean([np.mean(x["steps"]) for x in runs])), 3),
                "mismatches_vs_ar": sum(x["mismatch_at"] is not None for x in runs),
            }
        out[str(length)] = {"prompts": len(chosen), "methods": methods}
    return out


def report(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What both evaluation stages write."""
    return {
        **more,
        "by_context": summarise(rows),
        "by_context_without_loops": summarise([r for r in rows if not r["loop"]]),
    }


@torch.no_grad()
def main(args: argparse.Namespace) -> None:
    """The stage: writes accept lengths and mismatches to ``--out`` after every prompt."""
    device = pick_device(args.device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    ids, offsets = load_held_out(args.data)
    target, drafter = load_model(Target, args.target, device), load_model(Drafter, args.drafter, device)
    loop = Loop(target.eval(), drafter.eval(), device)
    rows: list[dict[str, Any]] = []
    started = monotonic()
    for i, (length, prompt) in enumerate(held_out_prompts(ids, offsets, args.plan, args.new)):
        reference = loop.greedy(prompt, args.new)
        row: dict[str, Any] = {"prompt": i, "ctx": length, "loop": ends_in_loop(reference), "runs": {}}
        for name, mode, budget in arms(args.budgets):
            out, steps = loop.speculative(prompt, args.new, mode, budget)
            wrong = next(
                (j for j, pair in enumerate(zip(out, reference, strict=True)) if pair[0] != pair[1]), None
            )
            row["runs"][name] = {"steps": steps, "mismatch_at": wrong}
        rows.append(row)
        seconds = round(monotonic() - started, 1)
        args.out.write_text(json.dumps(report(rows, new_tokens=args.new, seconds=seconds), indent=1))
        print(f"prompt {i}: {length} tokens, chain {np.mean(row['runs']['chain']['steps']):.2f}", flush=True)
