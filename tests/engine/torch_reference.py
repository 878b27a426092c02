"""The reference pair through transformers (target) and plain torch (drafter), to compare the engine with.

    python tests/engine/torch_reference.py OUT.npz [--data FOLDER]

Runs with an interpreter that has torch, transformers, safetensors and tokenizers; imports nothing of the
engine. The drafter is written out here once more, straight from the semantics in the pair's README: no
caches, no fused products, boolean masks over all columns. ``golden/reference_pair.npz`` is its output.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch_columns import columns
from transformers import AutoModelForCausalLM

DATA = Path(__file__).parents[2] / "backend" / "dflash_engine" / "data" / "reference_pair"
CASES = {"short": ("ipaddress.py", 64), "edge": ("nntplib.py", 256), "long": ("email/message.py", 1024)}
GREEDY_TOKENS = 32
BLOCK, WINDOW, MASK, EPS, THETA, HEADS, KV_HEADS, DIM = 16, 256, 1, 1e-6, 1e6, 4, 2, 64
FEATURE_LAYERS = (1, 2, 3)
LAYER_TYPES = ("sliding", "sliding", "full")


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rope(x, positions):
    """x [T, heads, DIM]."""
    frequencies = 1.0 / THETA ** (torch.arange(0, DIM, 2, dtype=torch.float32) / DIM)
    angles = (positions.float()[:, None] * frequencies).repeat(1, 2)[:, None]
    a, b = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


def visible(mode, kind, positions, n):
    """Boolean [block, n + block]: what each slot of the block sees."""
    columns = torch.arange(n + BLOCK)[None]
    rows = positions[:, None]
    if mode == "ignored":
        return torch.ones(BLOCK, n + BLOCK, dtype=torch.bool)
    if mode == "clamped":
        return (columns >= n - WINDOW).expand(BLOCK, -1)
    if kind == "sliding":
        return (columns <= rows) & (columns > rows - WINDOW)
    return torch.ones(BLOCK, n + BLOCK, dtype=torch.bool)


def draft(w, embedding, features, bonus, mode):
    """Logits [15, vocabulary] of one block after n context tokens; features [n, 3 * hidden]."""
    n = len(features)
    context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embedding[torch.tensor([bonus] + [MASK] * (BLOCK - 1))]
    positions = torch.arange(n, n + BLOCK)
    for i, kind in enumerate(LAYER_TYPES):
        p = f"layers.{i}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q = (h @ w[p + "self_attn.q_proj.weight"].T).view(BLOCK, HEADS, DIM)
        both = torch.cat([context, h])
        k = (both @ w[p + "self_attn.k_proj.weight"].T).view(n + BLOCK, KV_HEADS, DIM)
        v = (both @ w[p + "self_attn.v_proj.weight"].T).view(n + BLOCK, KV_HEADS, DIM)
        q = rope(norm(q, w[p + "self_attn.q_norm.weight"]), positions)
        k = rope(norm(k, w[p + "self_attn.k_norm.weight"]), torch.arange(n + BLOCK))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / DIM**0.5
        scores = scores.masked_fill(~visible(mode, kind, positions, n)[None], float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(BLOCK, HEADS * DIM)
        x = x + mixed @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gated = torch.nn.functional.silu(h @ w[p + "mlp.gate_proj.weight"].T) * (
            h @ w[p + "mlp.up_proj.weight"].T
        )
        x = x + gated @ w[p + "mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"])[1:] @ embedding.T


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        str(args.data / "target"), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    embedding = model.get_input_embeddings().weight
    weights = {k: v.float() for k, v in load_file(str(args.data / "drafter" / "model.safetensors")).items()}
    tokenizer = Tokenizer.from_file(str(args.data / "target" / "tokenizer.json"))
    prompts = {
        (p["file"], p["context_tokens"]): p["text"]
        for p in json.loads((args.data / "prompts.json").read_text())["prompts"]
    }
    out = {}
    for name, key in CASES.items():
        ids = tokenizer.encode(prompts[key]).ids
        result = model(torch.tensor([ids]), output_hidden_states=True)
        out[f"{name}/ids"] = np.array(ids)
        out[f"{name}/logits"] = result.logits[0, -1].numpy()
        features = torch.cat([result.hidden_states[i + 1][0] for i in FEATURE_LAYERS], -1)
        out[f"{name}/features_last"] = features[-1].numpy()
        bonus = int(result.logits[0, -1].argmax())
        for mode in ("declared", "ignored", "clamped"):
            logits = draft(weights, embedding, features, bonus, mode).numpy()
            out[f"{name}/draft/{mode}/argmax"] = logits.argmax(-1)
            out[f"{name}/draft/{mode}/columns"] = logits[:, columns(logits.shape[1])]
        sequence = list(ids)
        for _ in range(GREEDY_TOKENS):
            sequence.append(int(model(torch.tensor([sequence])).logits[0, -1].argmax()))
        out[f"{name}/greedy"] = np.array(sequence[len(ids) :])
    np.savez_compressed(args.out, **out)


if __name__ == "__main__":
    main()
