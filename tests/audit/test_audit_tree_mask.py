"""Whether the target's backend can verify a tree, and the size of the draft pool."""

from __future__ import annotations

from typing import Any

import pytest
from audit_cases import codes, finding, look

KIMI = {
    "model_type": "kimi_k2", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "architectures": ["DeepseekV3ForCausalLM"],
}  # fmt: skip
QWEN = {"model_type": "qwen3", "num_hidden_layers": 36, "num_key_value_heads": 8}
SM120, SM100, SM90 = (12, 0), (10, 0), (9, 0)


def tree(
    backend: str | None, target: dict[str, Any] | None, gpu: tuple[int, int] | None, **more: Any
) -> set[str]:
    info = {
        "model_path": "/m", "version": more.pop("version", "0.5.14"), "speculative_algorithm": "DDTREE",
        "speculative_ddtree_budget": 8, "attention_backend": backend, **more,
    }  # fmt: skip
    return codes(look(release=None, server_info=info, target_config=target, compute_capability=gpu))


@pytest.mark.parametrize(
    ("backend", "target", "gpu", "code"),
    [
        ("triton", KIMI, SM120, "tree-mask-taken"),
        ("triton", QWEN, SM120, "tree-mask-taken"),
        ("flashinfer", QWEN, SM120, "tree-mask-taken"),
        ("flashinfer", KIMI, SM120, "tree-mask-not-taken"),
        ("flashinfer", None, SM120, "tree-mask-depends-on-target"),
        ("fa3", QWEN, SM90, "tree-mask-taken"),
        ("fa3", KIMI, SM90, "tree-mask-taken"),
        ("fa3", QWEN, SM120, "tree-mask-backend-not-on-gpu"),
        ("fa3", QWEN, SM100, "tree-mask-backend-not-on-gpu"),
        ("fa4", QWEN, SM100, "tree-mask-not-taken"),
        ("trtllm_mha", QWEN, SM100, "tree-mask-not-taken"),
        ("trtllm_mla", KIMI, SM100, "tree-mask-not-taken"),
        ("trtllm_mla", KIMI, SM120, "tree-mask-backend-not-on-gpu"),
        ("flashmla", KIMI, SM90, "tree-mask-not-taken"),
        ("cutlass_mla", KIMI, SM100, "tree-mask-not-taken"),
        ("something", QWEN, SM90, "tree-mask-backend-unknown"),
        (None, KIMI, SM120, "tree-mask-backend-not-set"),
    ],
)
def test_backends(backend: str | None, target: Any, gpu: Any, code: str) -> None:
    assert code in tree(backend, target, gpu)


def test_an_mla_target_on_sm120_is_told_to_use_triton() -> None:
    info = {"model_path": "/m", "version": "0.5.14", "speculative_algorithm": "DDTREE"}
    report = look(release=None, server_info=info, target_config=KIMI, compute_capability=SM120)
    assert "set triton" in finding(report, "tree-mask-backend-not-set")
    assert "flashinfer" not in finding(report, "tree-mask-backend-not-set")


def test_pages_and_graph_shapes() -> None:
    assert "tree-page-size" in tree("triton", QWEN, SM120, page_size=64, version="0.5.11")
    assert "tree-page-size" not in tree("triton", QWEN, SM120, page_size=64, version="0.5.23")
    assert "tree-page-size" not in tree("triton", QWEN, SM120, page_size=1)
    info = {
        "model_path": "/m", "version": "0.5.14", "speculative_algorithm": "DDTREE",
        "speculative_ddtree_budget": 8, "attention_backend": "triton", "speculative_num_draft_tokens": 16,
    }  # fmt: skip
    report = look(release=None, server_info=info)
    assert "8 nodes verifies 9 tokens" in finding(report, "tree-graph-shape")
    report = look(release=None, server_info={**info, "speculative_num_draft_tokens": 9})
    assert "9 tokens per request" in finding(report, "tree-graph-shape")


def test_a_sliding_target_under_a_tree_mask() -> None:
    sliding = {**QWEN, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096}
    assert "tree-mask-sliding-target" in tree("flashinfer", sliding, SM120)
    assert "tree-mask-sliding-target" in tree("triton", sliding, SM120)
    assert "tree-mask-sliding-target" not in tree("fa3", sliding, SM90)
    assert "tree-mask-sliding-target" not in tree("triton", QWEN, SM120)


def test_nothing_is_said_of_trees_where_there_is_none() -> None:
    assert not any(code.startswith("tree-") for code in codes(look()))


def test_the_draft_pool_of_an_mla_target_is_wrongly_sized_up_to_0_5_17() -> None:
    text = finding(look(release="0.5.17", target_config=KIMI), "draft-pool-size")
    assert "6.75 KiB" in text
    assert "24 KiB" in text
    assert "draft-pool-size" not in codes(look(release="0.5.18", target_config=KIMI))
    assert "draft-pool-size" not in codes(look(release="0.5.17", target_config=QWEN))
    assert "no draft KV memory" in finding(look(), "memory")
