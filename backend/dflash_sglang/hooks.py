"""The hooks. Each runs inside SGLang; nothing of torch or sglang is imported before one does."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import releases, report, sources, windows
from .windows import LayerWindow, WindowError

_logger = logging.getLogger("dflash_sglang")
_TURN_OFF = "DFLASH_SGLANG_WINDOWS=off serves without this plugin's windows."


@dataclass
class State:
    """What was decided for this process, and the report once there is one."""

    release: str
    off: bool = False
    refusal: str | None = None
    """Why DFLASH must not start."""
    known: dict[str, sources.Source] = field(default_factory=dict)
    hooked: list[str] = field(default_factory=list)
    """Names of the functions wrapped."""
    report: dict[str, Any] | None = None

    @property
    def patches(self) -> bool:
        """Whether the plugin sets the windows, rather than reading them back."""
        return not self.off and self.refusal is None and self.release in releases.PATCHED


STATE: State | None = None


def install(state: State) -> None:
    """Registers the hooks with SGLang's registry; SGLang applies them right after."""
    global STATE
    STATE = state
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def after(name: str, hook: Callable[..., Any]) -> None:
        HookRegistry.register(_target(name), hook, HookType.AFTER)
        state.hooked.append(name)

    if not state.off:
        after(releases.SERVER_ARGS, functools.partial(guard, state))
    if state.refusal is not None or not state.known:
        return
    worker = releases.WORKER_V1 if state.release in releases.PATCHED else releases.WORKER_V2
    after(worker, functools.partial(worker_ready, state))
    after(releases.INTERNAL_STATE, functools.partial(tell, state))
    if state.patches:
        after(releases.ATTENTION, functools.partial(set_layer, state))
        after(releases.DRAFT_MODEL, functools.partial(model_ready, state))


def _target(name: str) -> str:
    """A function's name as SGLang's registry spells it."""
    return name.replace(":", ".")


def refuse(why: str) -> WindowError:
    """The error that ends the start of a server."""
    return WindowError(f"dflash-sglang: DFLASH does not start: {why}. {_TURN_OFF}")


def guard(state: State, _result: None, server_args: Any, *_: Any, **__: Any) -> None:
    """After ``ServerArgs.__post_init__``, in the launching process: refuses before anything is loaded."""
    if str(getattr(server_args, "speculative_algorithm", None)).upper() != "DFLASH":
        return
    if state.refusal is not None:
        raise refuse(state.refusal)
    _check_applied(state)
    path = server_args.speculative_draft_model_path
    try:
        from sglang.srt.utils.hf_transformers_utils import get_config

        config = get_config(
            path,
            trust_remote_code=server_args.trust_remote_code,
            revision=getattr(server_args, "speculative_draft_model_revision", None),
        )
    except Exception as error:
        if (Path(path) / "config.json").is_file():
            raise refuse(f"drafter config: {error}") from error
        # A model that is still to be fetched: SGLang loads the same config later, and then it is checked.
        _logger.warning("dflash-sglang could not read the drafter's config early: %s", error)
        return
    _check_config(state, config, server_args)


def set_layer(
    _state: State, _result: None, attention: Any, config: Any, layer_id: int, *_: Any, **__: Any
) -> None:
    """After ``DFlashAttention.__init__`` (0.5.11 to 0.5.13.post1): the layer's window and causality."""
    from sglang.srt.layers.radix_attention import AttentionType

    layer = windows.attended(config)[layer_id]
    kind = AttentionType.DECODER if layer.causal else AttentionType.ENCODER_ONLY
    attention.sliding_window_size = attention.attn.sliding_window_size = layer.window_left
    attention.attn_type = attention.attn.attn_type = kind


def model_ready(state: State, _result: None, model: Any, config: Any, *_: Any, **__: Any) -> None:
    """After ``DFlashDraftModel.__init__`` (0.5.11 to 0.5.13.post1): tells the model runner the window.

    The runner asks its model for it; attention backends make their window metadata, and the buffers that
    CUDA graphs replay from, only when it has one.
    """
    from sglang.srt.server_args import get_global_server_args

    server_args = get_global_server_args()  # the draft runner's, at this point
    _check_applied(state)
    layers = _check_config(state, config, server_args)
    sliding = [layer for layer in layers if layer.window is not None]
    if sliding:
        _check_backend(state, server_args)
    model.get_attention_sliding_window_size = lambda: sliding[0].window_left if sliding else None


def worker_ready(state: State, _result: None, worker: Any, *_: Any, **__: Any) -> None:
    """After the DFLASH worker's ``__init__``: reads back what the layers do, and reports it."""
    runner = worker.draft_model_runner
    config = runner.model_config.hf_config
    server_args = runner.server_args
    note = None
    declared: list[LayerWindow] | None = None
    try:
        declared = windows.attended(config)
        actual: list[LayerWindow] | None = layers_now(worker.draft_model)
    except (WindowError, AttributeError, TypeError) as error:
        actual, note = None, f"{type(error).__name__}: {error}"
    if not state.off:
        _check_live(state, runner, config, declared, actual)
    if state.patches:
        _keep_untranslated(runner)
    mode = "off" if state.off else "patched" if state.patches else "verified" if actual else "unverified"
    backend = str(getattr(server_args, "attention_backend", None))
    relied = releases.relied_upon(state.release)
    if state.patches and any(layer.window for layer in actual or ()):
        relied += releases.backend_sources(backend) or ()
    state.report = report.build(
        mode=mode,
        sglang=state.release,
        hooks=[(name, state.known[name].fingerprint) for name in state.hooked],
        sources=[(name, state.known[name].fingerprint) for name in relied],
        draft_backend=backend,
        cached=_cached(server_args),
        declared=declared,
        attended=actual,
        note=note,
    )
    if getattr(runner, "tp_rank", 0) == 0:
        _logger.info("%s", report.log_line(state.report))
        _logger.info("dflash-sglang: draft layers %s (%s)", windows.describe(actual or ()) or "unknown", mode)


def tell(state: State, output: Any, *_: Any, **__: Any) -> Any:
    """After ``Scheduler.get_internal_state``: adds the report to what /server_info returns."""
    idle = report.build(mode="idle", sglang=state.release, note="no DFLASH drafter in this server")
    output.internal_state[report.INTERNAL_STATE_KEY] = state.report or idle
    return output


def layers_now(draft_model: Any) -> list[LayerWindow]:
    """The draft layers as built. Raises AttributeError for a model of another make."""
    from sglang.srt.layers.radix_attention import AttentionType

    found = []
    for index, layer in enumerate(draft_model.layers):
        attention = layer.self_attn.attn
        left = attention.sliding_window_size
        window = None if left is None or left < 0 else int(left) + 1
        found.append(LayerWindow(index, window, causal=attention.attn_type != AttentionType.ENCODER_ONLY))
    return found


def _check_applied(state: State) -> None:
    """SGLang logs a hook that it could not apply and goes on: all of ours, or no start."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [name for name in state.hooked if _target(name) not in HookRegistry._patched]
    if missing:
        raise refuse(f"SGLang did not apply the hooks on {', '.join(missing)}; its log above says why")


def _check_config(state: State, config: Any, server_args: Any) -> list[LayerWindow]:
    """The layers a config asks for. Raises when this SGLang would not serve them so."""
    try:
        layers = windows.attended(config)
        lost = windows.lost_window(_written(server_args), config)
    except WindowError as error:
        raise refuse(f"drafter config: {error}") from error
    if lost is not None:
        raise refuse(f"drafter config: {lost}")
    if state.release not in releases.EXPLICIT_CAUSALITY:
        against = windows.contradiction(config, layers)
        if against is not None:
            raise refuse(f"drafter config: {against}")
    return layers


def _check_backend(state: State, server_args: Any) -> None:
    backend = str(server_args.attention_backend)
    names = releases.backend_sources(backend)
    if names is None:
        raise refuse(
            f"the draft attention backend {backend} of SGLang {state.release} has no per-layer windows; "
            "--speculative-draft-attention-backend triton (or fa3 on Hopper) can"
        )
    different = sources.differences(state.known, names)
    if different:
        raise refuse(
            f"the installed {backend} backend is not SGLang {state.release}'s: {'; '.join(different)}"
        )
    if backend == "triton" and getattr(server_args, "enable_deterministic_inference", False):
        raise refuse(
            "--enable-deterministic-inference misplaces the window of draft blocks in the triton backend"
        )


def _check_live(
    state: State,
    runner: Any,
    config: Any,
    declared: Sequence[LayerWindow] | None,
    actual: Sequence[LayerWindow] | None,
) -> None:
    if declared is None or actual is None:
        return  # reported as unverified; a config that cannot be honoured has been refused before
    wanted = [layer.window for layer in declared]
    got = [layer.window for layer in actual]
    if wanted != got:
        raise refuse(f"the drafter's layers should have windows {wanted}, but were built with {got}")
    if state.patches and [layer.causal for layer in declared] != [layer.causal for layer in actual]:
        raise refuse(f"the drafter's layers were built as {windows.describe(actual)}")
    if state.release in releases.EXPLICIT_CAUSALITY:
        against = windows.contradiction(config, actual)
        if against is not None:
            raise refuse(against)
    left = max((layer.window_left for layer in actual), default=-1)
    if left >= 0 and runner.sliding_window_size != left:
        raise refuse(f"the draft runner's window is {runner.sliding_window_size}, its layers' {left}")


def _keep_untranslated(runner: Any) -> None:
    """Keeps window indices in the draft's own KV pool when the target has sliding window layers itself.

    The triton backend of 0.5.11 and 0.5.12 translates window indices with the allocator, which draft and
    target share; a target of mixed layers has one that maps to the target's window pool. The draft's pool
    has no such map (0.5.13 asks the pool instead).
    """
    backend, pool = runner.attn_backend, runner.token_to_kv_pool
    translate = "translate_loc_from_full_to_swa"
    shared = getattr(backend, "token_to_kv_pool_allocator", None)
    if shared is not None and hasattr(shared, translate) and not hasattr(pool, translate):
        backend.token_to_kv_pool_allocator = pool


def _cached(server_args: Any) -> int | None:
    for name in ("speculative_draft_window_size", "speculative_dflash_draft_window_size"):
        value = getattr(server_args, name, None)
        if value is not None:
            return int(value)
    return None


def _written(server_args: Any) -> dict[str, Any]:
    """The drafter's config.json as it was written, before transformers interprets it; empty for none."""
    folder = server_args.speculative_draft_model_path
    path = Path(folder) / "config.json"
    try:
        if path.is_file():
            written = json.loads(path.read_text(encoding="utf-8"))
        else:
            from transformers import PretrainedConfig

            revision = getattr(server_args, "speculative_draft_model_revision", None)
            written, _ = PretrainedConfig.get_config_dict(folder, revision=revision)
    except (OSError, ValueError) as error:
        # SGLang has a config, or it would not have come this far; only the comparison with the file is lost.
        _logger.warning("dflash-sglang could not read config.json of %s: %s", folder, error)
        return {}
    return written if isinstance(written, dict) else {}
