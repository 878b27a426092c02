"""Test bed: a SGLang plugin that lets the real DFLASH workers (spec v1 and v2) run with plain torch on a CPU.

It changes how attention is computed and replaces helpers that exist for GPUs only. It never touches what the
product's plugin is about: which window and which causality a draft layer has. Those come from SGLang and from
the plugin under test, and the backend here follows the rules of SGLang's triton backend (see backend.py).
"""

import importlib.util

import torch


def register() -> None:
    """Entry point in the group ``sglang.srt.plugins``; runs in every process of the server."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from . import backend, helpers

    # `triton` is taken because the draft worker admits few names; `torch_native` is what CPU servers are
    # started with. Without speculation the stock backend serves, so that equality is with SGLang's own.
    ATTENTION_BACKENDS["torch_native"] = backend.choose(ATTENTION_BACKENDS["torch_native"])
    ATTENTION_BACKENDS["triton"] = backend.create

    def replace(target, function):
        HookRegistry.register(target, function, HookType.REPLACE)

    where = "sglang.srt.speculative.triton_ops.cache_locs"
    if importlib.util.find_spec(where) is None:  # up to 0.5.12
        where = "sglang.srt.speculative.spec_utils"
    replace(f"{where}.assign_req_to_token_pool_func", helpers.assign_req_to_token_pool)
    # Warms up a copy kernel whenever a speculative algorithm is set; DFLASH never copies KV.
    replace("sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup", lambda self: None)
    draft_forward = "sglang.srt.models.dflash.DFlashDraftModel.forward"
    HookRegistry.register(draft_forward, helpers.match_dtype, HookType.BEFORE)

    if importlib.util.find_spec("sglang.srt.speculative.dflash_worker_v2") is None:
        return
    replace(f"{where}.assign_extend_cache_locs_func", helpers.assign_extend_cache_locs)
    if not hasattr(torch.cpu, "Event"):
        torch.cpu.Event = helpers.FinishedEvent
    torch.Tensor.record_stream = lambda self, stream: None
