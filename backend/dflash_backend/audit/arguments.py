"""What a server was told: the window flag in either spelling, backends, tree settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.report import Evidence, Strength
from dflash_backend.sglang.decode import integer, items, mapping_or_empty, text
from dflash_backend.sglang.server_info import BUDGET_KEYS, TOPK_KEYS, WINDOW_KEYS

PLUGIN_KEY = "dflash_sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Settings that matter here. ``window_known`` False: nothing says whether the flag was given."""

    window: int | None = None
    window_known: bool = False
    window_text: str = ""
    """The flag's value as it stands, when it is no usable number."""
    draft_backend: str | None = None
    target_backend: str | None = None
    page_size: int | None = None
    block_size: int | None = None
    budget: int | None = None
    topk: int | None = None
    algorithm: str | None = None
    graphs_off: bool | None = None
    version: str | None = None
    plugin: Mapping[str, Any] | None = None
    """The plugin's report out of /server_info."""
    evidence: tuple[Evidence, ...] = ()
    from_server: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


def read_arguments(inputs: AuditInputs, flag_field: str | None = None) -> Arguments:
    """Reads /server_info, else the command line, else what the user states.

    ``flag_field`` is the name of the window's argument in a tree that calls it otherwise. Never raises.
    """
    if inputs.server_info is not None:
        states = [mapping_or_empty(state) for state in items(inputs.server_info.get("internal_states"))]
        values = {**(states[0] if states else {}), **inputs.server_info}
        plugin = next((p for s in states if (p := mapping_or_empty(s.get(PLUGIN_KEY)))), None)
        return _from(values, "/server_info", plugin, from_server=True, flag_field=flag_field)
    if inputs.argv is not None:
        return _from(
            read_argv(inputs.argv), "the command line", None, from_server=False, flag_field=flag_field
        )
    if inputs.draft_window is not None or inputs.no_draft_window:
        said = "not given" if inputs.draft_window is None else str(inputs.draft_window)
        return Arguments(
            window=inputs.draft_window,
            window_known=True,
            evidence=(
                Evidence(strength=Strength.ARGUMENTS, where="as stated", text=f"draft window flag: {said}"),
            ),
        )
    return Arguments()


def read_argv(argv: Sequence[str]) -> dict[str, Any]:
    """Options of a command line by their field name; the last one counts. Flags without a value are True."""
    values: dict[str, Any] = {"speculative_draft_window_size": None}
    words = list(argv)
    for place, word in enumerate(words):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = words[place + 1] if place + 1 < len(words) else "--"
            value = "" if following.startswith("--") else following
        key = name.replace("-", "_")
        if key in WINDOW_KEYS:
            values.pop("speculative_draft_window_size", None)
        values[key] = value if equals or value else True
    return values


def _from(
    values: Mapping[str, Any],
    where: str,
    plugin: Mapping[str, Any] | None,
    *,
    from_server: bool,
    flag_field: str | None,
) -> Arguments:
    keys = (*([flag_field] if flag_field else []), *WINDOW_KEYS)
    known = [key for key in keys if key in values]
    raw = next((values[key] for key in known if values[key] is not None), None)
    window = _number(raw)
    evidence: tuple[Evidence, ...] = ()
    if known:
        said = "not given" if raw is None else str(raw)[:40]
        name = next((key for key in known if values[key] is not None), known[0])
        shown = name if from_server else "the draft window flag"
        evidence = (Evidence(strength=Strength.ARGUMENTS, where=where, text=f"{shown}: {said}"),)
    return Arguments(
        window=window,
        window_known=bool(known) and (raw is None or window is not None),
        window_text="" if raw is None or window is not None else str(raw)[:40],
        draft_backend=_word(values.get("speculative_draft_attention_backend")),
        target_backend=_word(values.get("attention_backend"))
        or _word(values.get("prefill_attention_backend"))
        or _word(values.get("decode_attention_backend")),
        page_size=_number(values.get("page_size")),
        block_size=_number(values.get("speculative_dflash_block_size"))
        or _number(values.get("speculative_num_draft_tokens")),
        budget=_first(values, BUDGET_KEYS),
        topk=_first(values, TOPK_KEYS),
        algorithm=_word(values.get("speculative_algorithm")),
        graphs_off=values.get("disable_cuda_graph") is True or None,
        version=_word(values.get("version")),
        plugin=plugin,
        evidence=evidence,
        from_server=from_server,
        values=values,
    )


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        clean = value.strip()
        return int(clean) if clean.isascii() and clean.isdigit() and len(clean) < 16 else None
    return integer(value)


def _word(value: Any) -> str | None:
    return text(value, 80)


def _first(values: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    return next((found for key in keys if (found := _number(values.get(key))) is not None), None)
