"""Rollout stage: the target's greedy continuations of training text, for the drafter to learn from."""

from __future__ import annotations

import argparse
from itertools import count
from time import monotonic

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .corpus import load
from .models import HEAD_DIM, HEADS, KV_HEADS, Target, load_model, rope_table
from .optimisation import pick_device, windows

NEW_TOKENS = 144
"""Generated tokens per rollout; blocks start in the first 128 of them."""


@torch.no_grad()
def greedy_rollout(model: Target, prompts: Tensor, new: int) -> Tensor:
    """``[B, P] -> [B, P + new]``, all rows at once, with a static KV cache in the model's dtype."""
    batch, length = prompts.shape
    device, dtype = prompts.device, model.norm.weight.dtype
    shape = (batch, KV_HEADS, length + new, HEAD_DIM)
    keys = [torch.empty(shape, device=device, dtype=dtype) for _ in model.layers]
    values = [torch.empty_like(k) for k in keys]
    out = torch.empty(batch, length + new, dtype=torch.long, device=device)
    out[:, :length] = prompts
    chunk = max(1, 131072 // length)
    for i in range(0, batch, chunk):
        positions = torch.arange(length, device=device)[None]
        hidden, _, new_kv = model.step(prompts[i : i + chunk], positions, None, None)
        for layer, (k, v) in enumerate(new_kv):
            keys[layer][i : i + chunk, :, :length] = k
            values[layer][i : i + chunk, :, :length] = v
        out[i : i + chunk, length] = model.head(hidden[:, -1]).argmax(-1)
    cos, sin = rope_table(torch.arange(length + new, device=device)[None])
    for t in range(length, length + new - 1):
        x = model.embed_tokens(out[:, t : t + 1])
        rope = (cos[:, t : t + 1], sin[:, t : t + 1])
        for i, layer in enumerate(model.layers):
            h = layer.input_layernorm(x)
            q = layer.self_attn.q(h, rope)
            k, v = layer.self_attn.kv(h, rope)
            keys[i][:, :, t : t + 1] = k
            values[i][:, :, t : t + 1] = v
            grouped = q.reshape(batch, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
            mixed = functional.scaled_dot_product_attention(
                grouped, keys[i][:, :, : t + 1], values[i][:, :, : t + 1]
            )
            x = layer.finish(x, mixed.reshape(batch, HEADS, 1, HEAD_DIM))
        out[:, t + 1] = model.head(model.norm(x[:, -1])).argmax(-1)
    return out


def main(args: argparse.Namespace) -> None:
    """The stage: writes one ``LENGTH.npy`` of uint16 rows per length; three batches in five are of the
    first.
    """
    device = pick_device(args.device)
    train_ids, _, _ = load(args.data)
    train = torch.from_numpy(train_ids.astype(np.int32)).to(device)
    model = load_model(Target, args.target, device, torch.bfloat16 if device == "cuda" else torch.float32)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would build a new plan for every length
    generator = torch.Generator(device).manual_seed(5)
    args.out.mkdir(parents=True, exist_ok=True)
    first, *others = args.lengths
    order = [first] * 3 + others if others else [first]
    made: dict[int, list[Tensor]] = {length: [] for length in args.lengths}
    started = monotonic()
    for i in count():
        if monotonic() - started >= args.seconds:
            break
        length = order[i % len(order)]
        prompts = windows(train, max(1, args.batch_tokens // length), length - NEW_TOKENS - 1, generator)
        made[length].append(greedy_rollout(model, prompts, NEW_TOKENS).to(torch.int16).cpu())
    for length, parts in made.items():
        if parts:
            np.save(args.out / f"{length}.npy", torch.cat(parts).numpy().astype(np.uint16))
    print("rollouts", {length: sum(len(p) for p in parts) for length, parts in made.items()}, flush=True)
