"""What a gap costs, and what a window does not save: figures with their origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_backend.audit.report import AuditFinding, LayerRow
from dflash_backend.audit.rows import Faults
from dflash_backend.sglang.decode import integer, mapping_or_empty
from dflash_backend.sglang.versions import Release

PAIR = "reference pair, real SGLang, context 1024, window 256"
EXAMPLE_CONTEXT = 32_768


def acceptance(faults: Faults) -> str:
    """What the faults do to the accept length, as measured."""
    if faults.ignored and faults.causality:
        return f"accept length collapses at every context: 1.05 instead of 3.00 tokens per step ({PAIR})"
    if faults.ignored:
        return (
            "accept length is intact up to the window and collapses beyond it: 2.58 at context 256, "
            "1.05 at 1024, "
            f"instead of 2.61 and 3.00 ({PAIR})"
        )
    if faults.causality and faults.clamped:
        return f"one window on all layers and causality lost: 1.08 instead of 3.00 tokens per step ({PAIR})"
    if faults.causality:
        return (
            "without causality inside the block accept length collapses everywhere: 1.09 instead "
            f"of 3.00 ({PAIR})"
        )
    if faults.differs or faults.clamped:
        return (
            "layers see another context than the one that they were trained with; how much is lost "
            "was not measured"
        )
    return ""


def reads(rows: Sequence[LayerRow]) -> str:
    """How much more a layer reads that should slide and does not."""
    windows = {row.declared for row in rows if row.declared and row.attended_known and row.attended is None}
    if not windows:
        return ""
    window = max(windows)
    times = max(1, EXAMPLE_CONTEXT // window)
    return (
        f"attention reads: each such layer reads the whole context, {times} times its window at "
        f"{EXAMPLE_CONTEXT} tokens"
    )


def memory(
    known: Release | None, flag: int | None, target: Mapping[str, Any] | None, draft: Mapping[str, Any]
) -> list[AuditFinding]:
    """What a window does not save: every release keeps a draft KV slot for each target token."""
    found = [
        AuditFinding(
            severity="info",
            code="memory",
            text="the window frees no draft KV memory in any release: every target token keeps its draft slot"
            + (
                "; the compact cache is an index table that bounds what the draft reads"
                if flag is not None
                else ""
            ),
        )
    ]
    if known is not None and not known.draft_pool_by_geometry and target and is_mla(target):
        found.append(
            AuditFinding(
                severity="warning",
                code="draft-pool-size",
                text=f"SGLang {known.name} sizes the draft KV pool by the ratio of layer counts, which "
                "is wrong for an MLA "
                f"target with a drafter of another kind{_sizes(target, draft)}",
                remedy="leave room with --mem-fraction-static, or use 0.5.18 or newer, which counts "
                "the real shape",
            )
        )
    return found


def is_mla(config: Mapping[str, Any]) -> bool:
    """True for a model whose KV cache is a latent one."""
    inner = mapping_or_empty(config.get("text_config"))
    return any(integer(part.get("kv_lora_rank")) for part in (config, inner))


def _sizes(target: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    """Guessed and true bytes per token, where the shapes are known."""

    def of(config: Mapping[str, Any], name: str) -> int | None:
        return integer(config.get(name)) or integer(mapping_or_empty(config.get("text_config")).get(name))

    layers, rank, rope = (
        of(target, name) for name in ("num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
    )
    own, heads, dim = (of(draft, name) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    if not (layers and rank and rope and own and heads and dim):
        return ""
    guess = (rank + rope) * 2 * own / 1024
    true = own * 2 * heads * dim * 2 / 1024
    return (
        f": it assumes {guess:.2f} KiB per token and rank, true are {true:.0f} KiB over all "
        "tensor-parallel ranks (bf16)"
    )
