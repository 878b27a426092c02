"""Drafter stage: block prediction against a frozen target, on text and on the target's own continuations."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from time import monotonic

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .corpus import load
from .models import BLOCK, MASK_ID, WIDTH, Drafter, Layer, Target, block_biases, load_model, save_drafter
from .optimisation import adamw, pick_device, set_lr, set_up_torch, synchronise, until, windows
from .rollouts import NEW_TOKENS


@dataclass(frozen=True)
class Batch:
    """Shape of one batch: sequences of one kind and length, with so many blocks in each."""

    kind: str
    length: int
    sequences: int
    blocks: int


def batch_plan(args: argparse.Namespace, lengths: list[int]) -> list[Batch]:
    """The batches, in the order in which they are repeated."""

    def shape(kind: str, length: int, blocks: int) -> Batch:
        return Batch(kind, length, max(1, args.anchors // blocks), blocks)

    text = shape("text", args.seq, args.text_blocks)
    if args.phase == "text":
        return [text, text, text, shape("text", args.long_seq, 2 * args.text_blocks)]
    first, *others = sorted(lengths)
    short = shape("roll", first, args.roll_blocks)
    return [short, short, text] + [
        shape("roll", n, args.roll_blocks * (2 if n > 2048 else 1)) for n in others
    ]


def weighted_cross_entropy(hidden: Tensor, embedding: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    logits = (hidden @ embedding.to(hidden.dtype).T).float()
    return functional.cross_entropy(logits, labels, reduction="none") * weights


class Trainer:
    """Frozen target, drafter, data: one call per batch."""

    def __init__(self, args: argparse.Namespace, device: str) -> None:
        self.device = device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        train_ids, _, _ = load(args.data)
        self.train = torch.from_numpy(train_ids.astype(np.int32)).to(device)
        self.target = load_model(Target, args.target, device, self.dtype).requires_grad_(False)
        self.embedding = self.target.embed_tokens.weight
        torch.manual_seed(3)
        if args.init:
            self.model = load_model(Drafter, args.init, device)
        else:
            self.model = Drafter().to(device)
            with torch.no_grad():
                self.model.norm.weight.copy_(self.target.norm.weight)
        self.generator = torch.Generator(device).manual_seed(4)
        self.rollouts: dict[int, Tensor] = {}
        if args.phase == "greedy":
            for path in sorted(args.rollouts.glob("*.npy")):
                self.rollouts[int(path.stem)] = torch.from_numpy(np.load(path).astype(np.int16)).to(device)
        slots = torch.exp(-torch.arange(BLOCK - 1, device=device) / args.gamma)
        self.slot_weights = slots / slots.mean()
        self.loss = torch.compile(weighted_cross_entropy) if args.compile else weighted_cross_entropy
        if args.compile:
            for layer in self.target.layers:
                layer.compile()
            compiled = torch.compile(Layer.block)
            for layer in self.model.layers:
                layer.block = compiled.__get__(layer)

    def sequences(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
        """Tokens, the token expected at each position, features, and where blocks may start."""
        if batch.kind == "text":  # expected: the target's argmax at teacher-forced positions
            ids = windows(self.train, batch.sequences, batch.length - 1, self.generator)
            hidden, features = self.target.with_features(ids)
            predicted = self.target.head(hidden).argmax(-1)
            return ids, torch.cat([ids[:, :1], predicted[:, :-1]], 1), features, (32, batch.length - BLOCK)
        source = self.rollouts[batch.length]
        rows = torch.randint(0, len(source), (batch.sequences,), generator=self.generator, device=self.device)
        ids = source[rows].long()
        return ids, ids, self.target.features(ids), (batch.length - NEW_TOKENS, batch.length - BLOCK)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of one batch; returns the loss, the drafted hidden states and the labels."""
        count, blocks = batch.sequences, batch.blocks
        with torch.no_grad():
            ids, expected, features, (low, high) = self.sequences(batch)
            anchors = torch.randint(
                low, high + 1, (count, blocks), generator=self.generator, device=self.device
            )
            biases, positions = block_biases(anchors, batch.length, self.dtype)
            labels = expected.gather(1, positions).view(count, blocks, BLOCK)[:, :, 1:]
            tokens = torch.full((count, blocks, BLOCK), MASK_ID, device=self.device)
            tokens[:, :, 0] = ids.gather(1, anchors)
            x = self.embedding[tokens.flatten(1)]
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.model(x, features, positions, biases).view(count, blocks, BLOCK, WIDTH)[:, :, 1:]
            weights = self.slot_weights.repeat(count * blocks)
            loss = self.loss(hidden.flatten(0, 2), self.embedding, labels.flatten(), weights).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        return loss, hidden, labels

    @torch.no_grad()
    def accept_length(self, hidden: Tensor, labels: Tensor) -> float:
        """Teacher-forced accept length of a batch, bonus included."""
        right = (hidden.to(self.dtype) @ self.embedding.T).argmax(-1) == labels
        return right.long().cumprod(-1).sum(-1).float().mean().item() + 1


def main(args: argparse.Namespace) -> None:
    """The stage: writes a Hugging Face folder and training-PHASE.json."""
    device = pick_device(args.device)
    set_up_torch()
    trainer = Trainer(args, device)
    optimizer = adamw(trainer.model, args.lr, device)
    batches = batch_plan(args, list(trainer.rollouts))
    for batch in dict.fromkeys(batches):  # compile every shape before the clock starts
        trainer.step(batch)
        optimizer.zero_grad(set_to_none=True)
    synchronise(device)
    accept: dict[str, float] = {}
    log: list[tuple[int, dict[str, float]]] = []
    started, steps = monotonic(), 0
    for step, progress in until(args.seconds, device):
        batch = batches[step % len(batches)]
        set_lr(optimizer, args.lr, step, progress, warmup=100)
        loss, hidden, labels = trainer.step(batch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps = step + 1
        if step % 500 < len(batches):
            accept[f"{batch.kind}{batch.length}"] = round(trainer.accept_length(hidden, labels), 3)
        if steps % 500 == len(batches):
            log.append((steps, dict(accept)))
            print(f"drafter {args.phase} step {steps}: loss {loss.item():.3f}, accept {accept}", flush=True)
        if steps % 4000 == 0:
            save_drafter(trainer.model, args.out)
    save_drafter(trainer.model, args.out)
    summary = {
        "phase": args.phase,
        "steps": steps,
        "anchors": steps * args.anchors,
        "seconds": round(monotonic() - started, 1),
        "peak_lr": args.lr,
        "gamma": args.gamma,
        "plan": [(b.kind, b.length, b.sequences, b.blocks) for b in batches],
        "rollouts": {str(k): len(v) for k, v in trainer.rollouts.items()},
        "log": log,
    }
    (args.out / f"training-{args.phase}.json").write_text(json.dumps(summary))
    print("drafter", {k: v for k, v in summary.items() if k != "log"}, flush=True)
