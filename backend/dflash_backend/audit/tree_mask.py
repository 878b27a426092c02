"""DDTree: whether the target's attention backend can take a tree mask, on this GPU and for this model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_backend.audit.arguments import Arguments
from dflash_backend.audit.costs import is_mla
from dflash_backend.audit.report import AuditFinding
from dflash_backend.sglang.decode import integer, items, mapping_or_empty
from dflash_backend.sglang.versions import Release

_NO_MASK = {
    "flashinfer_mla": "it makes a mask and does not hand it to the kernel",
    "fa4": "it takes no tree",
    "trtllm_mha": "it takes one draft per position only",
    "trtllm_mla": "it takes no mask",
    "flashmla": "it takes one draft per position only",
    "cutlass_mla": "it takes no drafts",
}
_NOT_ON_SM120 = frozenset({"fa3", "fa4", "trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla"})
_MLA_NAMES = {"flashinfer": "flashinfer_mla"}


def tree_findings(
    arguments: Arguments,
    known: Release | None,
    target: Mapping[str, Any] | None,
    capability: tuple[int, int] | None,
) -> tuple[AuditFinding, ...]:
    """Findings about verifying a tree; none when there is neither a tree nor something to judge by."""
    tree = (arguments.algorithm or "").upper().replace("_", "") == "DDTREE" or arguments.budget is not None
    if not tree and target is None and capability is None:
        return ()
    mla = is_mla(target) if target is not None else None
    found = [_backend(arguments.target_backend, mla, capability, tree=tree)]
    found += _page(arguments, known, tree=tree)
    found += _graphs(arguments, tree=tree)
    found += _sliding_target(arguments.target_backend, target, known, arguments.page_size)
    return tuple(found)


def _backend(
    backend: str | None, mla: bool | None, capability: tuple[int, int] | None, *, tree: bool
) -> AuditFinding:
    sm120 = capability is not None and capability[0] == 12
    gpu = f"compute capability {capability[0]}.{capability[1]}" if capability else "a GPU that is not known"
    model = {
        True: "an MLA target",
        False: "a target with ordinary attention",
        None: "a target that is not known",
    }[mla]
    bad = "gap" if tree else "warning"
    usable = "triton" if mla or mla is None else "triton or flashinfer"
    remedy = f"--attention-backend {usable.split()[0]}"
    if backend is None:
        return AuditFinding(
            severity="warning" if tree else "info",
            code="tree-mask-backend-not-set",
            text=f"no attention backend is set: for a tree on {gpu} with {model} set {usable}",
            remedy=remedy,
        )
    real = _MLA_NAMES.get(backend, backend) if mla else backend
    if sm120 and real in _NOT_ON_SM120:
        return AuditFinding(
            severity=bad, code="tree-mask-backend-not-on-gpu",  # type: ignore[arg-type]
            text=f"{backend} does not run on {gpu}", remedy=remedy,
        )  # fmt: skip
    if real in _NO_MASK:
        return AuditFinding(
            severity=bad, code="tree-mask-not-taken",  # type: ignore[arg-type]
            text=f"{backend} cannot verify a tree for {model}: {_NO_MASK[real]}", remedy=remedy,
        )  # fmt: skip
    if real == "flashinfer" and mla is None:
        return AuditFinding(
            severity="warning", code="tree-mask-depends-on-target",
            text="flashinfer takes a tree mask for ordinary attention and not for MLA: the target's "
                 "config is not known",
            remedy="--attention-backend triton",
        )  # fmt: skip
    if real == "fa3" and capability is not None and capability[0] != 9:
        return AuditFinding(
            severity=bad, code="tree-mask-backend-not-on-gpu",  # type: ignore[arg-type]
            text=f"fa3 is for compute capability 9.0, this is {gpu}", remedy=remedy,
        )  # fmt: skip
    if real in ("triton", "flashinfer", "fa3"):
        return AuditFinding(
            severity="ok", code="tree-mask-taken", text=f"{backend} takes a tree mask for {model} on {gpu}"
        )
    return AuditFinding(
        severity="warning", code="tree-mask-backend-unknown",
        text=f"whether {backend} takes a tree mask is not known", remedy=remedy,
    )  # fmt: skip


def _page(arguments: Arguments, known: Release | None, *, tree: bool) -> list[AuditFinding]:
    page = arguments.page_size
    if page is None or page <= 1 or (not tree):
        return []
    backend = arguments.target_backend
    if backend in ("flashinfer", "fa3") or (
        backend == "triton" and known is not None and known.name == "0.5.23"
    ):
        return []
    return [
        AuditFinding(
            severity="gap",
            code="tree-page-size",
            text=f"page size {page}: with a tree {backend or 'the backend'} is only sure to work with "
            "pages of one token",
            remedy="--page-size 1",
        )
    ]


def _graphs(arguments: Arguments, *, tree: bool) -> list[AuditFinding]:
    budget = arguments.budget
    if not tree or budget is None or arguments.graphs_off:
        return []
    wanted = budget + 1
    captured = integer(arguments.values.get("speculative_num_draft_tokens"))
    if (
        captured is not None
        and captured != wanted
        and captured != arguments.values.get("speculative_dflash_block_size")
    ):
        return [
            AuditFinding(
                severity="warning",
                code="tree-graph-shape",
                text=f"a tree of {budget} nodes verifies {wanted} tokens (the root counts), but graphs "
                "are captured for "
                f"{captured} per request",
                remedy=f"--speculative-num-draft-tokens {wanted}",
            )
        ]
    return [
        AuditFinding(
            severity="info",
            code="tree-graph-shape",
            text=f"graphs must be captured for {wanted} tokens per request (budget {budget} and the root)",
        )
    ]


def _sliding_target(
    backend: str | None, target: Mapping[str, Any] | None, known: Release | None, page: int | None
) -> list[AuditFinding]:
    if target is None or not _slides(target):
        return []
    if backend in ("flashinfer", "triton", None):
        return [
            AuditFinding(
                severity="warning",
                code="tree-mask-sliding-target",
                text=f"the target has sliding layers, and {backend or 'triton and flashinfer'} ignores "
                "their window "
                "under a tree mask: wrong tokens beyond the window",
                remedy="keep the context below the window, or use a chain (DFLASH)",
            )
        ]
    if backend == "fa3" and page is not None and page > 1 and known is not None and known.name == "0.5.11":
        return [
            AuditFinding(
                severity="warning",
                code="tree-mask-sliding-target",
                text="fa3 in 0.5.11 takes no sliding layers with pages and a tree",
                remedy="--page-size 1",
            )
        ]
    return []


def _slides(target: Mapping[str, Any]) -> bool:
    for part in (target, mapping_or_empty(target.get("text_config"))):
        if "sliding_attention" in items(part.get("layer_types")):
            return True
        if integer(part.get("sliding_window")) and part.get("use_sliding_window") is True:
            return True
    return False
