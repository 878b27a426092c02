"""A small torch attention backend: extend, decode, target verify with an optional tree mask, draft blocks.

It reads windows and causality where SGLang's triton backend reads them, and fails where that would fail:

* a layer with ``sliding_window_size >= 0`` reads the window part of the metadata, which exists only when the
  *runner* has a sliding window (its model says so); otherwise the call fails;
* the window part holds the last ``min(cached, runner window)`` cached tokens; its own window masks on top;
* not causal when ``attn_type`` is ENCODER_ONLY, else the tree mask when there is one, else causal.
"""

from dataclasses import dataclass
from functools import partial

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from torch.nn.functional import scaled_dot_product_attention

from . import probe

try:  # from 0.5.14 on
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
except ImportError:
    KVWriteLoc = None


@dataclass
class Rows:
    """One request of a batch: its rows of the query and the slots of its keys."""

    first: int
    count: int
    slots: torch.Tensor
    """KV slots of all cached tokens and of the rows themselves, int64 [cached + count]."""
    cached: int
    mask: torch.Tensor | None
    """Tree mask, bool [count, cached + count]."""


class CpuAttentionBackend(AttentionBackend):
    """Attention of one model runner."""

    def __init__(self, runner):
        super().__init__()
        self.device = runner.device
        self.req_to_token_pool = runner.req_to_token_pool
        self.kv_pool = runner.token_to_kv_pool
        self.runner_window = runner.sliding_window_size
        self.probe = probe.Probe.from_environment() if runner.is_draft_worker else None
        self.batch: list[Rows] = []

    def init_forward_metadata(self, forward_batch):
        """Lays out the batch; in target verify ``seq_lens`` counts the cached tokens only."""
        table = self.req_to_token_pool.req_to_token
        lengths = forward_batch.seq_lens.tolist()
        mode = forward_batch.forward_mode
        mask = None
        if mode.is_target_verify():
            block = forward_batch.spec_info.draft_token_num
            counts = [block] * len(lengths)
            lengths = [length + block for length in lengths]
            mask = getattr(forward_batch.spec_info, "custom_mask", None)
        elif mode.is_decode_or_idle():
            counts = [1] * len(lengths)
        else:
            counts = forward_batch.extend_seq_lens.tolist()
        self.batch, row, at = [], 0, 0
        for request, count, length in zip(
            forward_batch.req_pool_indices.tolist(), counts, lengths, strict=True
        ):
            own = None
            if mask is not None:
                own = mask[at : at + count * length].view(count, length).bool()
                at += count * length
            self.batch.append(Rows(row, count, table[request, :length].long(), length - count, own))
            row += count

    def _attend(self, q, rows, layer, keys, values):
        causal = not layer.is_cross_attention and layer.attn_type != AttentionType.ENCODER_ONLY
        window = layer.sliding_window_size if layer.sliding_window_size is not None else -1
        start = 0
        if window >= 0:
            if not self.runner_window:
                raise RuntimeError(
                    f"layer {layer.layer_id} has a window of {window}, but its runner has none: "
                    "there are no window indices in the attention metadata"
                )
            start = max(0, rows.cached - self.runner_window)
        slots = rows.slots[start:]
        query = (rows.cached + torch.arange(rows.count))[:, None]
        key = torch.arange(start, start + slots.numel())[None, :]
        if not causal:
            allow = torch.ones(rows.count, slots.numel(), dtype=torch.bool)
        elif rows.mask is not None:
            allow = rows.mask[:, start:]
        else:
            allow = key <= query
        if window >= 0:
            allow = allow & (key >= query - window)
        return scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[slots].transpose(0, 1)[None].to(q.dtype),
            values[slots].transpose(0, 1)[None].to(q.dtype),
            attn_mask=allow[None, None],
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )[0].transpose(0, 1)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        """Attention of every request, [tokens, heads * head_dim]."""
        if save_kv_cache and k is not None:
            loc = forward_batch.out_cache_loc
            self.kv_pool.set_kv_buffer(layer, KVWriteLoc(loc, None) if KVWriteLoc else loc, k, v)
        keys = self.kv_pool.get_key_buffer(layer.layer_id)
        values = self.kv_pool.get_value_buffer(layer.layer_id)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        for rows in self.batch:
            mine = slice(rows.first, rows.first + rows.count)
            out[mine] = self._attend(q[mine], rows, layer, keys, values)
            if self.probe:
                self.probe.look(
                    layer.layer_id, rows, keys, values, partial(self._attend, q[mine], rows, layer)
                )
        return out.view(q.shape[0], -1)

    forward_decode = forward_extend

    def support_triton(self):
        """Whether callers may launch triton kernels beside it."""
        return False


def create(runner):
    """Factory in SGLang's registry of attention backends."""
    return CpuAttentionBackend(runner)


def choose(stock):
    """A factory that keeps the stock backend for servers without speculation."""

    def factory(runner):
        if runner.server_args.speculative_algorithm is None:
            return stock(runner)
        return create(runner)

    return factory
