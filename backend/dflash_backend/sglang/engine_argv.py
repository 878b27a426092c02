"""The launch command of the reference engine, which speaks SGLang's flag spellings."""

from __future__ import annotations

import difflib

from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.sglang.command import Draft
from dflash_backend.sglang.options import Option
from dflash_backend.sglang.values import value_problem, value_words

ENGINE_OPTIONS = {
    "served-model-name": "str",
    "speculative-draft-compact-cache": "flag",
    "context-length": "int",
    "max-running-requests": "int",
    "max-total-tokens": "int",
    "max-queued-requests": "int",
    "chunked-prefill-size": "int",
    "decode-log-interval": "int",
    "random-seed": "int",
    "enable-metrics": "flag",
    "skip-server-warmup": "flag",
}
"""Options that a profile may give to the engine; the others have a field of their own in the profile."""


def compose_engine(draft: Draft, profile: Profile, *, port: int, host: str) -> None:
    """Appends the engine's words. The window becomes one of its modes: declared, ignored or clamped."""
    draft.words.append("serve")
    draft.add("model-path", profile.target)
    draft.add("host", host)
    draft.add("port", port)
    if profile.algorithm is not Algorithm.NONE:
        if profile.drafter is None:
            draft.reject(
                f"{profile.algorithm} needs a drafter",
                'set drafter = "builtin:drafter"',
                about=("algorithm",),
            )
        draft.add("speculative-algorithm", profile.algorithm)
        draft.add("speculative-draft-model-path", profile.drafter)
        if profile.block_size is not None:
            draft.add("speculative-dflash-block-size", profile.block_size)
        if profile.algorithm is Algorithm.DDTREE:
            if profile.budget is not None:
                draft.add("speculative-ddtree-budget", profile.budget)
            if profile.topk is not None:
                draft.add("speculative-ddtree-topk", profile.topk)
        _add_window(draft, profile)
    for name, value in profile.options.items():
        kind = ENGINE_OPTIONS.get(name)
        if kind is None:
            near = difflib.get_close_matches(name, ENGINE_OPTIONS, n=1)
            draft.reject(
                f"the reference engine has no option {name}",
                f"did you mean {near[0]}?" if near else f"it knows {', '.join(ENGINE_OPTIONS)}",
                about=("options", name),
            )
            continue
        option = Option(name=name, first="", last="", field=name.replace("-", "_"), kind=kind)
        problem = value_problem(option, value)
        if problem is not None:
            draft.reject(f"option {name} {problem}", about=("options", name))
        else:
            draft.words.extend(value_words(option, value))
    if "enable-metrics" not in profile.options:
        draft.add("enable-metrics")
    if profile.extra:
        draft.reject("the reference engine takes no extra words", "use [options]", about=("extra",))


def _add_window(draft: Draft, profile: Profile) -> None:
    if profile.window == "config":
        draft.add("speculative-draft-window-mode", "declared")
    elif profile.window == "off":
        draft.add("speculative-draft-window-mode", "ignored")
        draft.warn(
            "window off: every draft layer attends to everything; a windowed drafter was not trained so"
        )
    else:
        draft.add("speculative-draft-window-mode", "clamped")
        draft.add("speculative-draft-window-size", profile.window)
        draft.warn(
            f"one window of {profile.window} tokens on every draft layer, whatever the drafter's config says"
        )
