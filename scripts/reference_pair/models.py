"""Target and drafter in torch, their masks, and their files.

With n committed tokens whose target hidden state is known, and the bonus token at position n (no hidden
state yet):

* context K/V, positions 0..n-1: k/v_proj(hidden_norm(fc(target hidden states after FEATURE_LAYERS))),
  k_norm, RoPE at the token's position;
* block input: target embeddings of [bonus, mask x 15] at positions n..n+15;
* full_attention: every slot sees all context and the whole block; sliding_attention: causal, position p
  sees p-(window-1)..p;
* the logits of slot i (1..15), target head over norm(x), predict the token at position n+i.

"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from .corpus import MASK, MAX_POSITIONS, SPECIALS, VOCABULARY

WIDTH, MLP_WIDTH, HEADS, KV_HEADS, HEAD_DIM = 256, 704, 4, 2, 64
TARGET_LAYERS, DRAFT_LAYERS = 6, 3
FEATURE_LAYERS = [1, 2, 3]  # hidden state AFTER the layer, counted from 0
BLOCK, WINDOW = 16, 256
LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
ROPE_THETA, EPS = 1e6, 1e-6
MASK_ID = SPECIALS.index(MASK)
NEVER = -30000.0  # additive mask value; finite, so that bf16 and rows without context stay finite

Rope = tuple[Tensor, Tensor]
M = TypeVar("M", bound=nn.Module)


class RMSNorm(nn.Module):
    """Computed in float32, returned in the input's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
        return (y * self.weight.float()).to(x.dtype)


def rope_table(positions: Tensor) -> Rope:
    """cos and sin ``[..., T, HEAD_DIM]``."""
    steps = torch.arange(0, HEAD_DIM, 2, device=positions.device, dtype=torch.float32) / HEAD_DIM
    angles = positions.float()[..., None] * ROPE_THETA**-steps
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """``x [B, H, T, D]``; rope ``[B or 1, T, D]``."""
    cos, sin = rope[0].unsqueeze(1), rope[1].unsqueeze(1)
    wide = x.float()
    a, b = wide.chunk(2, -1)
    return (wide * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Qwen3's projections with q/k norm; masks are the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.q_norm = RMSNorm(HEAD_DIM)
        self.k_norm = RMSNorm(HEAD_DIM)

    def q(self, x: Tensor, rope: Rope) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        return apply_rope(self.q_norm(q), rope)

    def kv(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        k = self.k_proj(x).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
        return apply_rope(self.k_norm(k), rope), v

    def out(self, mixed: Tensor) -> Tensor:
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def expand_kv(t: Tensor) -> Tensor:
    """Repeat each K/V head for its group of query heads."""
    return t.repeat_interleave(HEADS // KV_HEADS, dim=1)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, MLP_WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, MLP_WIDTH, bias=False)
        self.down_proj = nn.Linear(MLP_WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One layer, with the three ways it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(WIDTH)
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm(WIDTH)
        self.mlp = MLP()

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.self_attn.out(mixed)
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Plain causal self-attention."""
        h = self.input_layernorm(x)
        q = self.self_attn.q(h, (cos, sin))
        k, v = self.self_attn.kv(h, (cos, sin))
        mixed = functional.scaled_dot_product_attention(q, expand_kv(k), expand_kv(v), is_causal=True)
        return self.finish(x, mixed)

    def cached(
        self, x: Tensor, rope: Rope, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """After ``past`` (k, v ``[B, KV, T, D]``); returns the output and the new k and v."""
        h = self.input_layernorm(x)
        q = self.self_attn.q(h, rope)
        k, v = self.self_attn.kv(h, rope)
        all_k, all_v = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        mixed = functional.scaled_dot_product_attention(
            q, expand_kv(all_k), expand_kv(all_v), attn_mask=mask, is_causal=mask is None and q.shape[2] > 1
        )
        return self.finish(x, mixed), k, v

    def block(
        self,
        x: Tensor,
        context: Tensor,
        cos: Tensor,
        sin: Tensor,
        cos_context: Tensor,
        sin_context: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Drafter: ``x [B, Q, WIDTH]`` block tokens, ``context [B, S, WIDTH]`` projected features."""
        h = self.input_layernorm(x)
        q = self.self_attn.q(h, (cos, sin))
        k, v = self.self_attn.kv(h, (cos, sin))
        context_k, context_v = self.self_attn.kv(context, (cos_context, sin_context))
        mixed = functional.scaled_dot_product_attention(
            q,
            expand_kv(torch.cat([context_k, k], 2)),
            expand_kv(torch.cat([context_v, v], 2)),
            attn_mask=bias,
        )
        return self.finish(x, mixed)


def init_weights(model: nn.Module, layers: int) -> None:
    """Normal, by fan-in; projections into the residual stream are scaled down by the depth."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 if isinstance(module, nn.Embedding) else module.weight.shape[1] ** -0.5
            nn.init.normal_(module.weight, std=std)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_((2 * layers) ** -0.5)


class Target(nn.Module):
    """Qwen3 causal language model, tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(TARGET_LAYERS))
        self.norm = RMSNorm(WIDTH)
        init_weights(self, TARGET_LAYERS)

    def forward(self, ids: Tensor) -> Tensor:
        """Normed hidden states of whole sequences ``[B, T]``."""
        return self.norm(self._layers(ids, TARGET_LAYERS)[0])

    def with_features(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Normed hidden states and the drafter's features ``[B, T, 3 * WIDTH]``."""
        x, features = self._layers(ids, TARGET_LAYERS)
        return self.norm(x), features

    def features(self, ids: Tensor) -> Tensor:
        """The features alone: the layers after the last of them are not run."""
        return self._layers(ids, FEATURE_LAYERS[-1] + 1)[1]

    def _layers(self, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(ids)
        cos, sin = rope_table(torch.arange(ids.shape[1], device=ids.device)[None])
        features = []
        for i, layer in enumerate(self.layers[:count]):
            x = layer(x, cos, sin)
            if i in FEATURE_LAYERS:
                features.append(x)
        return x, torch.cat(features, -1)

    def head(self, x: Tensor) -> Tensor:
        return x @ self.embed_tokens.weight.to(x.dtype).T

    def step(
        self, ids: Tensor, positions: Tensor, past: list[tuple[Tensor, Tensor]] | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """With a cache: normed hidden states, features, new (k, v) per layer."""
        x = self.embed_tokens(ids)
        rope = rope_table(positions)
        features, new = [], []
        for i, layer in enumerate(self.layers):
            x, k, v = layer.cached(x, rope, None if past is None else past[i], mask)
            new.append((k, v))
            if i in FEATURE_LAYERS:
                features.append(x)
        return self.norm(x), torch.cat(features, -1), new


class Drafter(nn.Module):
    """DFlash drafter; uses the target's embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DRAFT_LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.fc = nn.Linear(len(FEATURE_LAYERS) * WIDTH, WIDTH, bias=False)
        self.hidden_norm = RMSNorm(WIDTH)
        init_weights(self, DRAFT_LAYERS)

    def project(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(features))

    def forward(
        self, x: Tensor, features: Tensor, block_positions: Tensor, biases: dict[str, Tensor]
    ) -> Tensor:
        """``x [B, Q, WIDTH]`` embedded blocks, features for positions 0..S-1, ``block_positions [B, Q]``."""
        context = self.project(features)
        cos, sin = rope_table(block_positions)
        cos_c, sin_c = rope_table(torch.arange(features.shape[1], device=x.device)[None])
        for layer, kind in zip(self.layers, LAYER_TYPES, strict=True):
            x = layer.block(x, context, cos, sin, cos_c, sin_c, biases[kind])
        return self.norm(x)


def block_biases(
    anchors: Tensor, context: int, dtype: torch.dtype, mode: str = "swa"
) -> tuple[dict[str, Tensor], Tensor]:
    """Additive masks ``[B, 1, NB*16, context + NB*16]`` per layer type, and the blocks' positions ``[B,
    NB*16]``.

    ``anchors [B, NB]``: where the blocks start. Modes: ``swa`` as trained; ``all_full`` every layer full
    and both ways; ``all_window`` every layer the last WINDOW context tokens and the whole block.

    """
    device, blocks = anchors.device, anchors.shape[1]
    offsets = torch.arange(BLOCK, device=device)
    positions = (anchors[:, :, None] + offsets).flatten(1)
    start = anchors.repeat_interleave(BLOCK, 1)[:, :, None]
    column = torch.arange(context, device=device)[None, None]
    block = torch.arange(blocks, device=device).repeat_interleave(BLOCK)
    slot = offsets.repeat(blocks)
    own = block[:, None] == block[None]
    own_causal = own & (slot[None] <= slot[:, None])
    before = column < start
    if mode == "swa":
        sliding = before & (column > positions[:, :, None] - WINDOW)
        seen = {"full_attention": (before, own), "sliding_attention": (sliding, own_causal)}
    else:
        view = before & (column >= start - WINDOW) if mode == "all_window" else before
        seen = dict.fromkeys(LAYER_TYPES, (view, own))
    biases = {}
    for kind, (ctx, block_mask) in seen.items():
        mask = torch.cat([ctx, block_mask[None].expand(len(anchors), -1, -1)], 2)
        zeros = torch.zeros(mask.shape, dtype=dtype, device=device)
        biases[kind] = zeros.masked_fill_(~mask, NEVER)[:, None]
    return biases, positions


# -- files


def _state(model: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {
        prefix + k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()
    }


def _stack_config(layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": MLP_WIDTH,
        "max_position_embeddings": MAX_POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_theta": int(ROPE_THETA),
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": int(ROPE_THETA)},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def _save(model: nn.Module, out: Path, config: dict[str, Any], prefix: str = "") -> None:
    out.mkdir(parents=True, exist_ok=True)
    save_file(_state(model, prefix), str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))


def save_target(model: Target, out: Path, data: Path) -> None:
    """A Hugging Face folder, with the tokenizer of ``data``."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        **_stack_config(TARGET_LAYERS),
        "max_window_layers": TARGET_LAYERS,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    _save(model, out, config, "model.")
    generation = {"do_sample": False, "eos_token_id": [0, 3], "pad_token_id": 0}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2))
    for file in (data / "tokenizer").iterdir():
        shutil.copyfile(file, out / file.name)


def save_drafter(model: Drafter, out: Path) -> None:
    """A Hugging Face folder with SGLang's weight names."""
    config = {
        "architectures": ["DFlashDraftModel"],
        **_stack_config(DRAFT_LAYERS),
        "block_size": BLOCK,
        "dflash_config": {"mask_token": MASK, "mask_token_id": MASK_ID, "target_layer_ids": FEATURE_LAYERS},
        "layer_types": LAYER_TYPES,
        "max_window_layers": 2,
        "num_target_layers": TARGET_LAYERS,
        "sliding_window": WINDOW,
        "use_sliding_window": True,
    }
    _save(model, out, config)


def load_model(kind: type[M], folder: Path, device: str, dtype: torch.dtype = torch.float32) -> M:
    """A saved target or drafter."""
    model = kind()
    stored = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({k.removeprefix("model."): v.to(dtype) for k, v in stored.items()})
    return model.to(device, dtype)
