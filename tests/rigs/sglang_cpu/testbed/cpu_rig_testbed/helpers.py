"""Torch versions of the helpers that SGLang has as GPU kernels only."""

import torch


def assign_req_to_token_pool(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size
):
    """Writes each request's slots, given one after another, into its row of the request-to-token table."""
    at = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs(
    req_pool_indices, req_to_token, start_offset, end_offset, batch_size, draft_token_num, device
):
    """The slots of each request's new block, one after another."""
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    return torch.cat([req_to_token[row, start:end] for row, start, end in rows]).to(torch.int64)


def match_dtype(self, input_ids, positions, forward_batch, input_embeds=None, *args, **kwargs):
    """Undoes the model runner's cast of input_embeds to bfloat16, which float32 models do not survive."""
    if input_embeds is not None:
        input_embeds = input_embeds.to(self.fc.weight.dtype)
    return (self, input_ids, positions, forward_batch, input_embeds, *args), kwargs


class FinishedEvent:
    """A device event on a device that is never behind."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        """Nothing is ever pending."""

    wait = synchronize = record

    def query(self):
        """Always finished."""
        return True
