"""One Qwen3 layer, shared by target and drafter: projections fused, norm weights as the checkpoint has
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .attention import C64, paired, rms_norm, rotate, silu_gate
from .config import StackConfig
from .linear import Linear
from .weights import F32


def layer_shapes(stack: StackConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of layer ``index`` as Hugging Face stores them."""
    hidden, width, D = stack.hidden_size, stack.intermediate_size, stack.head_dim
    q, kv = stack.heads * D, stack.kv_heads * D
    p = f"layers.{index}."
    return {
        p + "input_layernorm.weight": (hidden,),
        p + "self_attn.q_proj.weight": (q, hidden),
        p + "self_attn.k_proj.weight": (kv, hidden),
        p + "self_attn.v_proj.weight": (kv, hidden),
        p + "self_attn.o_proj.weight": (hidden, q),
        p + "self_attn.q_norm.weight": (D,),
        p + "self_attn.k_norm.weight": (D,),
        p + "post_attention_layernorm.weight": (hidden,),
        p + "mlp.gate_proj.weight": (width, hidden),
        p + "mlp.up_proj.weight": (width, hidden),
        p + "mlp.down_proj.weight": (hidden, width),
    }


def pair_rows(weight: F32, head_dim: int) -> F32:
    """Reorder the rows of a q/k projection ``[heads * D, hidden]`` head by head into paired order."""
    return weight.reshape(-1, head_dim, weight.shape[1])[:, paired(head_dim)].reshape(weight.shape)


class Layer:
    """Weights of one layer. ``attend`` is the caller's: target and drafter see different columns."""

    def __init__(self, stack: StackConfig, tensors: Mapping[str, F32], index: int) -> None:
        self.stack = stack
        D, p = stack.head_dim, f"layers.{index}."
        self._heads = stack.heads + stack.kv_heads  # q and k heads are normed and rotated together
        self._qkv = Linear(
            np.concatenate(
                [
                    pair_rows(tensors[p + "self_attn.q_proj.weight"], D),
                    pair_rows(tensors[p + "self_attn.k_proj.weight"], D),
                    tensors[p + "self_attn.v_proj.weight"],
                ]
            )
        )
        self._o = Linear(tensors[p + "self_attn.o_proj.weight"])
        self._gate_up = Linear(
            np.concatenate([tensors[p + "mlp.gate_proj.weight"], tensors[p + "mlp.up_proj.weight"]])
        )
        self._down = Linear(tensors[p + "mlp.down_proj.weight"])
        q_norm = tensors[p + "self_attn.q_norm.weight"][paired(D)] * np.float32(D**-0.5)
        k_norm = tensors[p + "self_attn.k_norm.weight"][paired(D)]
        self._qk_norm = np.concatenate(
            [np.tile(q_norm, (stack.heads, 1)), np.tile(k_norm, (stack.kv_heads, 1))]
        )
        self._norm_in = tensors[p + "input_layernorm.weight"]
        self._norm_mlp = tensors[p + "post_attention_layernorm.weight"]

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in (self._qkv, self._o, self._gate_up, self._down)) + sum(
            w.nbytes for w in (self._qk_norm, self._norm_in, self._norm_mlp)
        )

    def qkv(self, x: F32, turns: C64) -> tuple[F32, F32, F32]:
        """``x [M, hidden]`` -> queries ``[M, H, D]`` (scaled), keys and values ``[M, Hkv, D]``."""
        M, D = len(x), self.stack.head_dim
        y = self._qkv(rms_norm(x, self._norm_in, self.stack.rms_norm_eps))
        split = self._heads * D
        qk = rms_norm(y[:, :split].reshape(M, self._heads, D), self._qk_norm, self.stack.rms_norm_eps)
        qk = rotate(qk, turns)
        v = y[:, split:].reshape(M, self.stack.kv_heads, D)
        return qk[:, : self.stack.heads], qk[:, self.stack.heads :], v

    def finish(self, x: F32, mixed: F32) -> F32:
        """The rest of the layer: output projection, MLP, both residuals. ``x [M, hidden]``, ``mixed [M,
        H*D]``.
        """
        x = self._o(mixed) + x
        gate_up = self._gate_up(rms_norm(x, self._norm_mlp, self.stack.rms_norm_eps))
        y = self._down(silu_gate(gate_up, self.stack.intermediate_size))
        y += x
        return y
