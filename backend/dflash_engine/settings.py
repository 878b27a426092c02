"""Checks of an EngineConfig, and the part of it that can change while the engine runs."""

from __future__ import annotations

from dataclasses import dataclass

from .api import MAX_BUDGET, Algorithm, EngineConfig, EngineConfigError, WindowMode
from .config import DrafterConfig, TargetConfig
from .drafter import DraftWindows, resolve_windows


@dataclass(frozen=True, slots=True)
class Live:
    """Settings that ``Engine.reconfigure`` changes. ``windows`` is None without a drafter."""

    budget: int | None
    topk: int | None
    windows: DraftWindows | None


def _whole(name: str, value: object, low: int, high: int | None = None) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        bounds = f">= {low}" if high is None else f"from {low} to {high}"
        raise EngineConfigError(name, f"must be a whole number {bounds}, is {value!r}")
    return value


def check_config(config: EngineConfig) -> None:
    """What can be said before any file is read."""
    _whole("context_length", config.context_length, 1)
    _whole("max_running_requests", config.max_running_requests, 1)
    _whole("chunked_prefill_size", config.chunked_prefill_size, 1)
    if config.max_total_tokens is not None:
        _whole("max_total_tokens", config.max_total_tokens, 1)
    if config.max_queued_requests is not None:
        _whole("max_queued_requests", config.max_queued_requests, 0)
    if config.algorithm is not Algorithm.NONE and config.drafter_path is None:
        raise EngineConfigError("drafter_path", f"{config.algorithm} needs a drafter")
    if config.algorithm is not Algorithm.DDTREE:
        for name, value in (("budget", config.budget), ("topk", config.topk)):
            if value is not None:
                raise EngineConfigError(
                    name, f"only {Algorithm.DDTREE} has one, the algorithm is {config.algorithm}"
                )


def check_positions(config: EngineConfig, target: TargetConfig, drafter: DrafterConfig | None) -> None:
    """The context must fit both models."""
    for name, model in (("target", target), ("drafter", drafter)):
        if model is not None and config.context_length > model.stack.max_position_embeddings:
            raise EngineConfigError(
                "context_length",
                f"{config.context_length} is more than the {name}'s max_position_embeddings "
                f"({model.stack.max_position_embeddings})",
            )


def check_block_size(config: EngineConfig, drafter: DrafterConfig) -> None:
    if config.block_size is not None and config.block_size != drafter.block_size:
        raise EngineConfigError(
            "block_size",
            f"{config.block_size}, but the drafter was trained with block_size {drafter.block_size} and this "
            "engine runs no other",
        )


def first_live(config: EngineConfig, drafter: DrafterConfig | None) -> Live:
    """The live settings that a configuration starts with."""
    if drafter is None:
        return Live(None, None, None)
    budget, topk = None, None
    if config.algorithm is Algorithm.DDTREE:
        budget = _budget(drafter.block_size - 1 if config.budget is None else config.budget)
        topk = None if config.topk is None else _topk(config.topk, drafter)
    return Live(budget, topk, resolve_windows(drafter, config.window_mode, config.window_size))


def changed(
    live: Live,
    config: EngineConfig,
    drafter: DrafterConfig | None,
    *,
    budget: int | None,
    topk: int | None,
    window_mode: WindowMode | None,
    window_size: int | None,
) -> Live:
    """``live`` with the given values; see ``Engine.reconfigure``. Raises without changing anything."""
    given = {"budget": budget, "topk": topk, "window_mode": window_mode, "window_size": window_size}
    if drafter is None or live.windows is None:
        for name, value in given.items():
            if value is not None:
                raise EngineConfigError(name, f"the algorithm is {config.algorithm}: there is no drafter")
        return live
    for name in ("budget", "topk"):
        if given[name] is not None and config.algorithm is not Algorithm.DDTREE:
            raise EngineConfigError(
                name, f"only {Algorithm.DDTREE} has one, the algorithm is {config.algorithm}"
            )
    new_budget = live.budget if budget is None else _budget(budget)
    new_topk = live.topk if topk is None else None if topk == 0 else _topk(topk, drafter)
    mode = live.windows.mode if window_mode is None else window_mode
    size = live.windows.asked if window_size is None else None if window_size == 0 else window_size
    if size is not None:
        _whole("window_size", size, 1)
    return Live(new_budget, new_topk, resolve_windows(drafter, mode, size))


def _budget(value: object) -> int:
    return _whole("budget", value, 1, MAX_BUDGET)


def _topk(value: object, drafter: DrafterConfig) -> int:
    return _whole("topk", value, 1, drafter.stack.vocab_size)
