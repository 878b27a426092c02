"""Target stage: next-token training of the small Qwen3 model."""

from __future__ import annotations

import argparse
import json
from time import monotonic

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .corpus import load
from .models import Target, load_model, save_target
from .optimisation import adamw, pick_device, set_lr, set_up_torch, synchronise, until, windows

LONG_FROM = 0.65
"""Share of the time after which every other step uses long sequences."""


def cross_entropy(hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy((hidden @ embedding.to(hidden.dtype).T).float(), labels)


@torch.no_grad()
def held_out_loss(model: Target, ids: np.ndarray, length: int, limit: int, device: str) -> float:
    """Mean nats per token over the held-out stream cut into stretches of ``length``."""
    stream = torch.from_numpy(ids.astype(np.int64))
    count = min((len(stream) - 1) // length, limit // length)
    batch = max(1, 32768 // length)
    total, seen = 0.0, 0
    for i in range(0, count, batch):
        rows = [stream[j * length : j * length + length + 1] for j in range(i, min(i + batch, count))]
        x = torch.stack(rows).to(device)
        with torch.autocast(device, torch.bfloat16):
            logits = model.head(model(x[:, :-1]))
        loss = functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), reduction="sum")
        total += loss.item()
        seen += x[:, 1:].numel()
    return total / max(seen, 1)


def main(args: argparse.Namespace) -> None:
    """The stage: writes a Hugging Face folder and training.json."""
    device = pick_device(args.device)
    set_up_torch()
    train_ids, held_out, _ = load(args.data)
    train = torch.from_numpy(train_ids.astype(np.int32)).to(device)
    torch.manual_seed(1)
    model = Target().to(device)
    generator = torch.Generator(device).manual_seed(2)
    optimizer = adamw(model, args.lr, device)
    loss_of = torch.compile(cross_entropy) if args.compile else cross_entropy
    if args.compile:
        for layer in model.layers:
            layer.compile()

    def step_on(length: int, batch: int) -> Tensor:
        x = windows(train, batch, length, generator)
        with torch.autocast(device, torch.bfloat16):
            hidden = model(x[:, :-1])
            loss = loss_of(hidden.flatten(0, 1), model.embed_tokens.weight, x[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    shapes = [(s, max(1, args.tokens // s)) for s in (args.seq, args.long_seq)]
    for shape in shapes:  # compile both before the clock starts
        step_on(*shape)
        optimizer.zero_grad(set_to_none=True)
    synchronise(device)
    log: list[tuple[int, int, float]] = []
    started, tokens, steps = monotonic(), 0, 0
    for step, progress in until(args.seconds, device):
        length, batch = shapes[1 if progress > LONG_FROM and step % 2 == 1 else 0]
        set_lr(optimizer, args.lr, step, progress, warmup=200)
        loss = step_on(length, batch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps, tokens = step + 1, tokens + length * batch
        if steps % 400 == 0 or steps == 20:
            log.append((steps, tokens, round(loss.item(), 4)))
            print(f"target step {steps}: {tokens / 1e6:.0f} M tokens, loss {log[-1][2]:.3f}", flush=True)
        if steps % 2500 == 0:
            save_target(model, args.out, args.data)
    save_target(model, args.out, args.data)
    saved = load_model(Target, args.out, device)  # the loss of the weights as saved, rounded to bf16
    summary = {
        "steps": steps,
        "tokens": tokens,
        "epochs": round(tokens / len(train), 2),
        "seconds": round(monotonic() - started, 1),
        "train_tokens": len(train),
        "peak_lr": args.lr,
        "tokens_per_step": args.tokens,
        **{
            f"val_loss_{n}": round(
                held_out_loss(saved, held_out, min(n, len(held_out) // 4), args.val_limit, device), 4
            )
            for n in (2048, 8192)
        },
        "log": log,
    }
    (args.out / "training.json").write_text(json.dumps(summary))
    print("target", {k: v for k, v in summary.items() if k != "log"}, flush=True)
