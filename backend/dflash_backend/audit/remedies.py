"""What to do about a gap, for the release at hand: only what really helps."""

from __future__ import annotations

import shlex

from dflash_backend.audit.declared import Declared
from dflash_backend.audit.report import Remedy, Verdict
from dflash_backend.audit.rows import Faults
from dflash_backend.sglang.versions import Release

FIRST_HONOURING = "0.5.14"
FIRST_EXPLICIT = "0.5.18"
"""First release that follows a top-level ``is_causal``."""
PLUGIN_PATCHES = ("0.5.11", "0.5.13.post1")
"""First and last release on which the plugin sets the windows itself."""


def upgrade(to: str, why: str) -> Remedy:
    """A newer SGLang."""
    return Remedy(
        kind="upgrade",
        text=f"install SGLang {to} or newer in the server's environment: {why}",
        command=f"pip install {shlex.quote(f'sglang=={to}')}",
    )


def plugin(host: str) -> Remedy:
    """This project's plugin on the host."""
    command = f"dflash-console plugin install {shlex.quote(host)}" if host else ""
    return Remedy(
        kind="plugin",
        text="install the SGLang plugin on the host and restart the server: it builds every draft "
        "layer with its "
        "declared window and causality",
        command=command,
    )


def config_edit(declared: Declared) -> Remedy:
    """What to write into the drafter's config.json."""
    raw = declared.raw
    edits = []
    if not isinstance(raw.get("layer_types"), list) and not any(
        "text_config" in one.reason for one in declared.layers
    ):
        edits.append('"layer_types", one "sliding_attention" or "full_attention" per layer as it was trained')
    if raw.get("use_sliding_window") is not True:
        edits.append('"use_sliding_window": true')
    window = raw.get("sliding_window")
    if declared.window is not None and window != declared.window and window is not None:
        edits.append(f'"sliding_window": {declared.window}, as a number')
    if declared.window is None:
        edits.append('"sliding_window", the number of tokens that the drafter was trained with')
    if declared.window == 1:
        edits = ['a "sliding_window" of at least 2: SGLang stores 1 as no window']
    wanted = "; ".join(edits) or "the fields named in the findings"
    return Remedy(
        kind="config", text=f"write into the drafter's config.json: {wanted}; then restart the server"
    )


def reinstall(version: str) -> Remedy:
    """The stock release over a changed tree."""
    return Remedy(
        kind="upgrade",
        text=f"put the stock SGLang {version} in place of the changed files",
        command=f"pip install --force-reinstall --no-deps {shlex.quote(f'sglang=={version}')}",
    )


def remedies_for(
    verdict: Verdict,
    declared: Declared,
    faults: Faults,
    known: Release | None,
    *,
    host: str,
    patched: bool,
    start_fails: bool,
    trap: bool,
    flag: int | None,
    honours: bool,
) -> tuple[Remedy, ...]:
    """Remedies in the order in which to try them. ``flag`` is the window flag's value in force."""
    found: list[Remedy] = []
    if trap or start_fails or verdict is Verdict.DECLARED_BUT_DROPPED:
        found.append(config_edit(declared))
    gap = verdict in (Verdict.IGNORED, Verdict.CLAMPED, Verdict.DECLARED_BUT_DROPPED) or bool(
        faults.causality
    )
    if known is not None and gap and not known.honours_layer_windows:
        if not patched:
            found.append(plugin(host))
        found.append(upgrade(FIRST_HONOURING, "it builds every layer with its declared window and causality"))
    elif known is not None and gap and patched and verdict is not Verdict.DECLARED_BUT_DROPPED:
        found.append(reinstall(known.name))
    elif known is not None and faults.causality and not known.explicit_causal and _says_causal(declared):
        found.append(upgrade(FIRST_EXPLICIT, "it follows is_causal of the drafter's config"))
    if flag is not None and known is not None and (faults.clamped or faults.differs) and honours:
        found.append(
            Remedy(
                kind="flag",
                text=f"start without --{known.window_option}: the declared windows apply without it, "
                "and it limits "
                f"the other layers to {flag} tokens",
            )
        )
    elif flag is not None and known is not None and not known.honours_layer_windows and gap:
        found.append(
            Remedy(
                kind="flag",
                text=f"take --{known.window_option} {flag} out once the windows are honoured: it "
                "limits every layer, "
                "the full ones too",
            )
        )
    if not found:
        found.append(Remedy(kind="none", text=_nothing(verdict)))
    return tuple(dict.fromkeys(found))


def _says_causal(declared: Declared) -> bool:
    return isinstance(declared.raw.get("is_causal"), bool)


def _nothing(verdict: Verdict) -> str:
    if verdict is Verdict.ENFORCED:
        return "nothing to do: the declared windows apply"
    if verdict is Verdict.NOT_DECLARED:
        return "nothing to do: the drafter declares no window"
    return "find out first what is missing"
