"""The speculative part of an SGLang launch command: what each release does with a drafter and its window.

Facts are from the releases' sources; accept lengths from the reference pair on real SGLang 0.5.11 and 0.5.14.
"""

from __future__ import annotations

import re

from dflash_backend.core.profile import Algorithm, OptionValue, Profile
from dflash_backend.sglang.command import Draft, HostAbilities
from dflash_backend.sglang.versions import Release

WINDOWS_FEATURE = "windows"
"""What the dflash plugin reports when it makes the drafter's windows hold."""
WINDOWS_SWITCH = "DFLASH_SGLANG_WINDOWS"
"""The plugin's environment switch; "off" leaves SGLang's own behaviour."""
BUDGET_OPTION = "speculative-ddtree-budget"
TOPK_OPTION = "speculative-ddtree-topk"
BACKEND_OPTIONS = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")

_NO_TREE_MASK = {
    "fa4": "takes no tree mask",
    "trtllm_mha": "drafts one candidate per position only",
    "trtllm_mla": "takes no tree mask",
    "flashmla": "drafts one candidate per position only",
    "cutlass_mla": "takes no tree mask",
    "torch_native": "takes no custom mask",
}
_NOT_ON_SM120 = ("fa3", "fa4", "trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla")
_MLA = re.compile(r"kimi-?k[23]|deepseek-?(?:v[23]|r1)|glm-?(?:4\.7-flash|5)|mistral-large-3", re.IGNORECASE)


def looks_like_mla(target: str) -> bool:
    """True when the target's name is one of a family with multi-head latent attention. A guess by name."""
    return _MLA.search(target) is not None


def add_speculation(draft: Draft, profile: Profile, facts: Release, known: HostAbilities) -> None:
    """Appends algorithm, drafter, block size, window and tree, or says why the host cannot do it."""
    _check_backends(draft, profile, known)
    if profile.algorithm is Algorithm.NONE:
        return
    if profile.drafter is None:
        draft.reject(
            f"{profile.algorithm} needs a drafter", "set drafter in the profile", about=("algorithm",)
        )
    draft.add("speculative-algorithm", profile.algorithm)
    draft.add("speculative-draft-model-path", profile.drafter)
    if profile.block_size is not None:
        draft.add("speculative-dflash-block-size", profile.block_size)
    _check_options(draft, profile, facts)
    _add_window(draft, profile, facts, known)
    if profile.algorithm is Algorithm.DDTREE:
        _add_tree(draft, profile, facts, known)


def _int(value: OptionValue | None) -> int | None:
    try:
        return int(str(value)) if value is not None and not isinstance(value, bool) else None
    except ValueError:
        return None


def _option(profile: Profile, *names: str) -> OptionValue | None:
    return next((profile.options[name] for name in names if name in profile.options), None)


def _check_options(draft: Draft, profile: Profile, facts: Release) -> None:
    """What SGLang itself would refuse or silently change at start."""
    algorithm = profile.algorithm
    pipeline = _int(_option(profile, "pp-size", "pipeline-parallel-size"))
    if pipeline is not None and pipeline != 1:
        draft.refuse(
            f"{algorithm} works with pipeline parallelism of 1 only, not {pipeline}",
            "use tp-size instead of pp-size",
            about=("options", "pp-size"),
        )
    replicas = _int(_option(profile, "attn-dp-size", "attention-data-parallel-size"))
    if profile.options.get("enable-dp-attention") is True or (replicas is not None and replicas > 1):
        if not facts.dflash_with_dp_attention:
            draft.refuse(
                f"SGLang {facts.name} refuses {algorithm} with DP attention",
                "take enable-dp-attention out, or use 0.5.23",
                about=("options", "enable-dp-attention"),
            )
        elif profile.options.get("enable-dp-lm-head") is not True:
            draft.reject(
                f"{algorithm} with DP attention needs enable-dp-lm-head",
                "add enable-dp-lm-head = true",
                about=("options", "enable-dp-attention"),
            )
    if profile.options.get("device") == "cpu":
        if facts.dflash_on_cpu_refused:
            draft.refuse(
                f"SGLang {facts.name} refuses {algorithm} on a CPU",
                "use algorithm NONE or a GPU",
                about=("options", "device"),
            )
        else:
            draft.warn(
                f"SGLang {facts.name} has no DFLASH kernels for a CPU: the start will fail without a plugin"
            )
    tokens = _int(_option(profile, "speculative-num-draft-tokens"))
    if tokens is not None and profile.block_size is not None and tokens != profile.block_size:
        draft.reject(
            f"block_size {profile.block_size} and speculative-num-draft-tokens {tokens} must be equal",
            "take speculative-num-draft-tokens out",
            about=("block_size",),
        )
    for name in ("speculative-num-steps", "speculative-eagle-topk"):
        value = _int(profile.options.get(name))
        if value is not None and value != 1:
            draft.warn(f"{name} {value} has no effect: SGLang sets it to 1 for {algorithm}")
    if "max-running-requests" not in profile.options:
        draft.note("max-running-requests is not set: SGLang sets it to 48 when it speculates")
    if not facts.spec_v2:
        draft.note(f"SGLang {facts.name} switches the overlap scheduler off for {algorithm}")
    backend = profile.options.get("speculative-draft-attention-backend")
    if backend is not None and backend not in facts.draft_backends:
        draft.warn(
            f"the draft worker of SGLang {facts.name} does not take {backend} and falls back to flashinfer; "
            f"it takes {', '.join(facts.draft_backends)}"
        )


def _add_window(draft: Draft, profile: Profile, facts: Release, known: HostAbilities) -> None:
    by_plugin = not facts.honours_layer_windows and WINDOWS_FEATURE in known.plugin_features
    honoured = facts.honours_layer_windows or by_plugin
    if profile.window == "config":
        if not honoured:
            draft.warn(
                f"SGLang {facts.name} does not read the drafter's layer_types and sliding_window: a drafter "
                "that declares windows runs with full attention, and its accept length collapses beyond "
                "the window (reference pair at context 1024: 1.05 instead of 3.00). The plugin and releases "
                "from 0.5.14 on honour windows; the window flag does not repair it",
                topic="window",
            )
        return
    if profile.window == "off":
        if by_plugin:
            draft.env[WINDOWS_SWITCH] = "off"
            draft.note(f"{WINDOWS_SWITCH}=off: the plugin leaves the draft layers without their windows")
        elif honoured:
            draft.warn(
                "window off cannot be had here: the draft layers apply the windows of the drafter's config, "
                "and no flag of SGLang turns that off"
            )
        return
    block = profile.block_size or _int(_option(profile, "speculative-num-draft-tokens"))
    if block is not None and profile.window < block:
        draft.reject(
            f"window {profile.window} is smaller than the block of {block} tokens",
            f"use a window of at least {block}",
            about=("window",),
        )
    if (
        known.options is not None
        and facts.window_option not in known.options
        and _listed(facts.window_option)
    ):
        draft.refuse(
            f"the SGLang on this host does not list --{facts.window_option}",
            "run 'hosts check' to see what is installed there",
            about=("window",),
        )
    draft.add(facts.window_option, profile.window)
    if honoured:
        draft.note(
            f"--{facts.window_option} adds a compact index table that bounds what the draft reads; "
            "it frees no draft KV memory"
        )
    else:
        draft.warn(
            f"in SGLang {facts.name} the flag puts one window on every draft layer, the full ones too, and "
            "leaves the sliding ones bidirectional: an approximation that may not repair acceptance "
            "(reference pair at context 1024: 1.08 instead of 3.00)",
            topic="window",
        )


def _listed(name: str) -> bool:
    """The old spelling is hidden from --help in most releases that know it."""
    return name != "speculative-dflash-draft-window-size"


def _check_backends(draft: Draft, profile: Profile, known: HostAbilities) -> None:
    """Backends that the GPU does not have."""
    if known.compute_capability is None or known.compute_capability[0] != 12:
        return
    for name in (*BACKEND_OPTIONS, "speculative-draft-attention-backend"):
        backend = profile.options.get(name)
        if backend in _NOT_ON_SM120:
            draft.refuse(
                f"{name} {backend} does not run on this GPU (compute capability "
                f"{known.compute_capability[0]}.{known.compute_capability[1]})",
                "use triton, or flashinfer where the model is not MLA",
                about=("options", name),
            )
    if looks_like_mla(profile.target) and profile.options.get("attention-backend") is None:
        draft.warn(
            "attention-backend is not set: SGLang may choose an MLA backend that this GPU lacks; set triton"
        )


def _add_tree(draft: Draft, profile: Profile, facts: Release, known: HostAbilities) -> None:
    """DDTREE: in no release; a host has it when its own SGLang lists the budget option."""
    if known.options is None or BUDGET_OPTION not in known.options:
        seen = "" if known.options is not None else " (this host's options have not been read)"
        draft.refuse(
            f"DDTREE is in no SGLang release: the host's SGLang does not list --{BUDGET_OPTION}{seen}",
            "use a build of SGLang that has DDTree, or algorithm DFLASH",
            about=("algorithm",),
        )
    if profile.budget is not None:
        draft.add(BUDGET_OPTION, profile.budget)
    if profile.topk is not None:
        if known.options is None or TOPK_OPTION in known.options:
            draft.add(TOPK_OPTION, profile.topk)
        else:
            draft.warn(f"topk {profile.topk} has no effect: the host's SGLang lists no --{TOPK_OPTION}")
    if not facts.registers_algorithms and known.options is None:
        draft.note(f"SGLang {facts.name} takes built-in algorithm names only")
    page = _int(profile.options.get("page-size"))
    if page is not None and page != 1:
        draft.reject(
            f"DDTREE needs page-size 1, not {page}", "set page-size = 1", about=("options", "page-size")
        )
    if profile.options.get("speculative-use-rejection-sampling") is True:
        draft.reject(
            "DDTREE cannot use rejection sampling",
            "take the option out",
            about=("options", "speculative-use-rejection-sampling"),
        )
    mla = looks_like_mla(profile.target)
    backends = {n: profile.options[n] for n in BACKEND_OPTIONS if n in profile.options}
    if "attention-backend" not in backends and len(backends) < 2:
        draft.reject(
            "DDTREE needs an attention backend that takes a tree mask, and none is set: SGLang would choose",
            'set attention-backend = "triton"',
            about=("algorithm",),
        )
    for name, backend in backends.items():
        reason = _NO_TREE_MASK.get(str(backend))
        if backend == "flashinfer" and mla:
            reason = "does not pass a tree mask on for MLA targets"
        if reason is not None:
            draft.refuse(
                f"{name} {backend} cannot verify a tree: it {reason}",
                f'set {name} = "triton"',
                about=("options", name),
            )
