"""Which SGLang releases this plugin knows, and what it touches and relies upon in each."""

from __future__ import annotations

SERVER_ARGS = "sglang.srt.server_args:ServerArgs.__post_init__"
INTERNAL_STATE = "sglang.srt.managers.scheduler:Scheduler.get_internal_state"
ATTENTION = "sglang.srt.models.dflash:DFlashAttention.__init__"
DRAFT_MODEL = "sglang.srt.models.dflash:DFlashDraftModel.__init__"
WORKER_V1 = "sglang.srt.speculative.dflash_worker:DFlashWorker.__init__"
WORKER_V2 = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.__init__"

HOOK_REGISTRY = "sglang.srt.plugins.hook_registry:HookRegistry"
LAYER_PARAMETERS = "sglang.srt.models.dflash:_get_dflash_layer_attention_params"

PATCHED = ("0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1")
"""DFLASH without per-layer windows: the plugin sets them."""

VERIFIED = (
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
"""SGLang reads the drafter's windows itself: the plugin reads them back."""

EXPLICIT_CAUSALITY = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Releases that follow an explicit ``is_causal`` in every layer."""

# What the windows go through once a layer has one, per draft attention backend.
_TRITON = (
    "sglang.srt.layers.attention.triton_backend:TritonAttnBackend",
    "sglang.srt.layers.attention.triton_backend:update_sliding_window_buffer",
    "sglang.srt.layers.attention.triton_ops.extend_attention:_fwd_kernel",
    "sglang.srt.layers.attention.triton_ops.extend_attention:extend_attention_fwd",
)
_FLASH = ("sglang.srt.layers.attention.flashattention_backend:FlashAttentionBackend",)
_BACKENDS = {"triton": _TRITON, "fa3": _FLASH, "fa4": _FLASH}


def hooked(release: str) -> tuple[str, ...]:
    """The functions that the plugin wraps on this release."""
    if release in PATCHED:
        return (SERVER_ARGS, ATTENTION, DRAFT_MODEL, WORKER_V1, INTERNAL_STATE)
    return (SERVER_ARGS, WORKER_V2, INTERNAL_STATE)


def relied_upon(release: str) -> tuple[str, ...]:
    """Functions that are not wrapped, but whose behaviour the hooks build on."""
    if release in PATCHED:
        return (
            HOOK_REGISTRY,
            "sglang.srt.layers.radix_attention:RadixAttention.__init__",
            "sglang.srt.model_executor.model_runner:ModelRunner.load_model",
            "sglang.srt.models.dflash:DFlashAttention.forward",
        )
    return (HOOK_REGISTRY, ATTENTION, LAYER_PARAMETERS)


def backend_sources(backend: str) -> tuple[str, ...] | None:
    """What a draft attention backend's windows go through; None for one that cannot attend per-layer windows.

    flashinfer is such a one up to 0.5.13.post1: its window metadata needs prefix lengths, which draft blocks
    lack.
    """
    return _BACKENDS.get(backend)


def all_names(release: str) -> tuple[str, ...]:
    """Every name that the table has for this release."""
    names = hooked(release) + relied_upon(release)
    if release in PATCHED:
        names += (*_TRITON, *_FLASH)
    return names
