"""What target and drafter training share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic

import torch
from torch import Tensor, nn


def pick_device(wanted: str | None) -> str:
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def set_up_torch() -> None:
    """TF32 products, and a compiled version per shape."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_tf32 = True
    from torch import _dynamo as dynamo

    dynamo.config.automatic_dynamic_shapes = False
    dynamo.config.cache_size_limit = 64


def adamw(model: nn.Module, lr: float, device: str) -> torch.optim.Optimizer:
    """Weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=device == "cuda")


def set_lr(optimizer: torch.optim.Optimizer, peak: float, step: int, progress: float, warmup: int) -> float:
    """Linear warm-up over steps, cosine decay to 2 % over the time given."""
    floor = 0.02
    decay = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    lr = peak * min(1.0, (step + 1) / warmup) * decay
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def windows(tokens: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """``[count, length + 1]`` random stretches of the token stream."""
    starts = torch.randint(0, len(tokens) - length - 1, (count,), generator=generator, device=tokens.device)
    return tokens[starts[:, None] + torch.arange(length + 1, device=tokens.device)].long()


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def until(seconds: float, device: str) -> Iterator[tuple[int, float]]:
    """(step, progress from 0 to 1) until the time is over."""
    started, step = monotonic(), 0
    while (progress := (monotonic() - started) / seconds) < 1:
        yield step, progress
        step += 1
        if step % 20 == 0:
            synchronise(device)
