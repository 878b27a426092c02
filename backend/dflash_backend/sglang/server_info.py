"""Readers of /server_info, /model_info and /v1/models. Secrets are removed on read.

/server_info prints ``api_key`` and ``admin_api_key`` in clear in every release; nothing that leaves this
module holds them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dflash_backend.core.profile import Algorithm
from dflash_backend.core.samples import EffectiveSettings
from dflash_backend.core.text import redact
from dflash_backend.sglang.decode import (
    FormatError,
    JsonInput,
    as_mapping,
    clean_json,
    decode_json,
    flag,
    integer,
    items,
    mapping_or_empty,
    number,
    text,
)

GIB_IN_MIB = 1024.0

WINDOW_KEYS = ("speculative_draft_window_size", "speculative_dflash_draft_window_size")
"""Newest spelling first; 0.5.11 has only the second."""
BUDGET_KEYS = (
    "speculative_ddtree_budget",
    "ddtree_budget",
    "speculative_dflash_tree_budget",
    "tree_budget",
    "budget",
)
TOPK_KEYS = (
    "speculative_ddtree_topk",
    "speculative_ddtree_max_topk",
    "ddtree_topk",
    "ddtree_max_topk",
    "topk",
)
TREE_SWITCHES = (
    "speculative_dflash_tree_verify",
    "speculative_dflash_enable_ddtree",
    "speculative_enable_ddtree",
)
"""Switches by which forks turn a DFLASH server into a tree one."""
_DUMMY = frozenset({"avg_spec_accept_length", "last_gen_throughput", "load"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One replica's internal state. ``accept_length`` is a mean since the last flush, rank 0 only."""

    last_gen_throughput: float | None = None
    accept_length: float | None = None
    max_running_requests: int | None = None
    load: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What /server_info says.

    ``role``: a server of its own, or a gateway in front of prefill and decode servers (then ``workers``
    holds their addresses and ``settings`` is mostly empty).
    """

    settings: EffectiveSettings
    states: tuple[RankState, ...] = ()
    role: Literal["server", "gateway"] = "server"
    workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    launch_command: str | None = None
    status: str | None = None


def read_server_info(data: JsonInput) -> ServerInfo:
    """Reads any release's form and the gateway's. Raises FormatError when it is no JSON object."""
    top = as_mapping(clean_json(decode_json(data, "/server_info"), "/server_info"), "/server_info")
    states = [s for s in items(top.get("internal_states")) if isinstance(s, Mapping)]
    workers = {
        role: urls
        for role, keys in (
            ("prefill", ("prefill", "prefill_servers")),
            ("decode", ("decode", "decode_servers")),
        )
        if (urls := tuple(url for key in keys for url in _urls(top.get(key))))
    }
    first: Mapping[str, object] = states[0] if states else {}
    # A router without a live server behind it answers a dummy state of zeros.
    known = {**first, **{k: v for k, v in top.items() if v is not None or k not in first}}
    if "model_path" not in known and not workers and not states:
        raise FormatError(
            "no server settings in this answer",
            next_step="expected the answer of /server_info or /get_server_info, with model_path in it",
        )
    return ServerInfo(
        settings=_settings(known, first),
        states=tuple(_state(s) for s in states),
        role="gateway" if workers else "server",
        workers=workers,
        launch_command=_command(top.get("launch_command")),
        status=text(top.get("status"), 60),
    )


def read_effective_settings(data: JsonInput) -> EffectiveSettings:
    """The settings alone. Raises FormatError as ``read_server_info`` does."""
    return read_server_info(data).settings


def _urls(value: object) -> Sequence[str]:
    found = []
    for item in items(value):
        url = text(item if isinstance(item, str) else mapping_or_empty(item).get("url"), 300)
        if url:
            found.append(url)
    return found


def _command(value: object) -> str | None:
    if isinstance(value, list):
        value = shlex.join(str(part) for part in value)
    command = text(value, 8000)
    return redact(command) if command else None


def _state(state: Mapping[str, object]) -> RankState:
    accept = number(state.get("avg_spec_accept_length"))
    return RankState(
        last_gen_throughput=number(state.get("last_gen_throughput")),
        accept_length=accept if accept is not None and accept >= 1.0 else None,
        max_running_requests=integer(state.get("effective_max_running_requests_per_dp")),
        load=integer(state.get("load")),
    )


def _settings(known: Mapping[str, object], state: Mapping[str, object]) -> EffectiveSettings:
    algorithm = read_algorithm(known)
    speculative = algorithm in (Algorithm.DFLASH, Algorithm.DDTREE)
    block = integer(known.get("speculative_dflash_block_size"))
    if block is None and algorithm is Algorithm.DFLASH:
        block = integer(known.get("speculative_num_draft_tokens"))  # the same thing for a chain
    tree = algorithm is Algorithm.DDTREE
    granted = integer(state.get("effective_max_running_requests_per_dp"))
    replicas = integer(known.get("dp_size")) or 1
    asked = integer(known.get("max_running_requests"))
    return EffectiveSettings(
        version=text(known.get("version"), 60),
        model=text(known.get("model_path"), 500),
        drafter=text(known.get("speculative_draft_model_path"), 500),
        algorithm=algorithm,
        window=_first(known, WINDOW_KEYS),
        window_known=any(key in known for key in WINDOW_KEYS),
        budget=_first(known, BUDGET_KEYS) if tree else None,
        topk=_first(known, TOPK_KEYS) if tree else None,
        block_size=block if speculative else None,
        max_running_requests=asked if granted is None else granted * replicas,
        max_total_tokens=_first(known, ("max_total_num_tokens", "max_total_tokens")),
        context_length=integer(known.get("context_length")),
        memory_mib=read_memory(mapping_or_empty(state.get("memory_usage") or known.get("memory_usage"))),
        raw={
            k: v
            for k, v in known.items()
            if k not in ("internal_states", "launch_command") and k not in _DUMMY
        },
    )


def read_algorithm(settings: Mapping[str, object]) -> Algorithm | None:
    """The algorithm in our words; None when the settings do not tell, or name one that is not ours.

    The other one's name stays in the raw settings.
    """
    if "speculative_algorithm" not in settings:
        return None
    name = settings["speculative_algorithm"]
    if name is None or (isinstance(name, str) and name.strip().upper() in ("", "NONE")):
        return Algorithm.NONE
    word = text(name, 60)
    upper = word.upper().replace("-", "_").replace("_", "") if word else ""
    if upper == "DDTREE":
        return Algorithm.DDTREE
    if upper == "DFLASH":
        return (
            Algorithm.DDTREE if any(settings.get(key) is True for key in TREE_SWITCHES) else Algorithm.DFLASH
        )
    return None


def read_memory(usage: Mapping[str, object]) -> dict[str, float]:
    """``memory_usage`` in MiB: weights, kv_cache, graphs (a number up to 0.5.16, then one per phase)."""
    memory: dict[str, float] = {}
    for name, key in (("weights", "weight"), ("kv_cache", "kvcache"), ("graphs", "graph")):
        value = usage.get(key)
        if isinstance(value, Mapping):
            parts = [part for item in value.values() if (part := number(item)) is not None]
            size = sum(parts) if parts else None
        else:
            size = number(value)
        if size is not None:
            memory[name] = round(size * GIB_IN_MIB, 3)
    return memory


def _first(settings: Mapping[str, object], keys: Sequence[str]) -> int | None:
    return next((value for key in keys if (value := integer(settings.get(key))) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What /model_info says. Newer releases tell more; None where they do not."""

    model_path: str | None = None
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    is_generation: bool | None = None
    weight_version: str | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None


def read_model_info(data: JsonInput) -> ModelInfo:
    """Reads /model_info and /get_model_info. Raises FormatError when it is no JSON object with a model."""
    top = as_mapping(decode_json(data, "/model_info"), "/model_info")
    if "model_path" not in top:
        raise FormatError("no model in this answer", next_step="expected the answer of /model_info")
    return ModelInfo(
        model_path=text(top.get("model_path"), 500),
        served_model_name=text(top.get("served_model_name"), 200),
        tokenizer_path=text(top.get("tokenizer_path"), 500),
        model_type=text(top.get("model_type"), 100),
        architectures=tuple(a for item in items(top.get("architectures")) if (a := text(item, 200))),
        is_generation=flag(top.get("is_generation")),
        weight_version=text(top.get("weight_version"), 100),
        reasoning_parser=text(top.get("reasoning_parser"), 100),
        tool_call_parser=text(top.get("tool_call_parser"), 100),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of /v1/models."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


def read_models(data: JsonInput) -> tuple[ServedModel, ...]:
    """Reads /v1/models. Raises FormatError when it is no model list."""
    top = as_mapping(decode_json(data, "/v1/models"), "/v1/models")
    if not isinstance(top.get("data"), list):
        raise FormatError("no model list in this answer", next_step="expected the answer of /v1/models")
    return tuple(
        ServedModel(
            id=name, root=text(item.get("root"), 200), max_model_len=integer(item.get("max_model_len"))
        )
        for item in items(top.get("data"))
        if isinstance(item, Mapping) and (name := text(item.get("id"), 200))
    )
