"""The table of truth: what each config, release and flag comes to. Expected values are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from audit_cases import (
    ENFORCED_LAYERS,
    FULL,
    FULL_LAYERS,
    LOG_LINE,
    NEW,
    OLD,
    RELEASES,
    SLIDING,
    WINDOW,
    attended,
    codes,
    config,
    finding,
    look,
)

from dflash_backend.audit.report import Strength, Verdict
from rigs.sglang_sources import stock

E, C, I, D, N, U = (  # noqa: E741
    Verdict.ENFORCED,
    Verdict.CLAMPED,
    Verdict.IGNORED,
    Verdict.DECLARED_BUT_DROPPED,
    Verdict.NOT_DECLARED,
    Verdict.UNKNOWN,
)

VARIANTS: dict[str, tuple[dict[str, Any], Verdict, Verdict, Verdict, Verdict]] = {
    # name: changes, 0.5.11-0.5.13 without and with the flag, 0.5.14 and later without and with it
    "as trained": ({}, I, C, E, E),
    "all sliding": ({"layer_types": [SLIDING] * 6}, I, C, E, E),
    "all full": ({"layer_types": [FULL] * 6, "sliding_window": None}, N, N, N, N),
    "full, window unused": ({"layer_types": [FULL] * 6}, N, N, N, N),
    "nothing said": ({"layer_types": ..., "sliding_window": ..., "use_sliding_window": ...}, N, N, N, N),
    "nothing meant": ({"layer_types": ..., "use_sliding_window": False}, N, N, N, N),
    # Qwen's class takes the window out; SGLang then refuses the sliding layers.
    "use_sliding_window false": ({"use_sliding_window": False}, I, C, D, D),
    "use_sliding_window absent": ({"use_sliding_window": ...}, I, C, D, D),
    # Without layer_types every layer becomes full, in every release.
    "no layer_types": ({"layer_types": ..., "max_window_layers": 28}, D, C, D, C),
    "layer_types null": ({"layer_types": None, "max_window_layers": ...}, D, C, D, C),
    "no layer_types, use absent": ({"layer_types": ..., "use_sliding_window": ...}, D, C, D, C),
    # Qwen's class makes the layers from max_window_layers on slide.
    "max_window_layers 2": ({"layer_types": ..., "max_window_layers": 2}, I, C, E, E),
    "max_window_layers 0": ({"layer_types": ..., "max_window_layers": 0}, I, C, E, E),
    "llama, no use_sliding_window": ({"model_type": "llama", "use_sliding_window": ...}, I, C, E, E),
    "llama, use false": ({"model_type": "llama", "use_sliding_window": False}, I, C, E, E),
    "llama, no layer_types": (
        {"model_type": "llama", "layer_types": ..., "use_sliding_window": ...}, D, C, D, C,
    ),
    "nested": (
        {
            "layer_types": ..., "sliding_window": ..., "use_sliding_window": ...,
            "text_config": {"layer_types": [SLIDING] * 5 + [FULL], "sliding_window": WINDOW},
        }, I, C, E, E,
    ),
    "nested first": (
        {
            "sliding_window": 512, "layer_types": [FULL] * 6,
            "text_config": {"layer_types": [SLIDING] * 5 + [FULL], "sliding_window": WINDOW},
        }, I, C, E, E,
    ),
    # A number in quotes: Qwen's class refuses it, Llama's hands it on and SGLang makes a number of it.
    "window in quotes": ({"sliding_window": "2048"}, U, U, U, U),
    "window in quotes, llama": ({"model_type": "llama", "sliding_window": "2048"}, I, C, E, E),
    "window no number": ({"sliding_window": "large"}, U, U, U, U),
    "window a float": ({"sliding_window": 2048.0}, U, U, U, U),
    "use_sliding_window in quotes": ({"use_sliding_window": "true"}, U, U, U, U),
    "window null": ({"sliding_window": None}, I, U, U, U),
    "window absent, llama": ({"model_type": "llama", "sliding_window": ...}, I, U, U, U),
    "window zero, llama": ({"model_type": "llama", "sliding_window": 0}, I, U, I, U),
    "window one": ({"sliding_window": 1}, I, C, D, C),
    "layer_types a text": ({"layer_types": SLIDING}, U, U, U, U),
    "layer_types too short": ({"layer_types": [SLIDING] * 3}, U, U, U, U),
    "layer_types too long": ({"layer_types": [SLIDING] * 9}, U, U, U, U),
    "layer_types strange": ({"layer_types": ["sliding"] * 6}, U, U, U, U),
    "layer_types chunked": ({"layer_types": ["chunked_attention"] * 6}, U, U, U, U),
    "layers in quotes": ({"num_hidden_layers": "6"}, U, U, U, U),
    # transformers fills in its class's 32, and refuses six kinds for them.
    "layers missing": ({"num_hidden_layers": ...}, U, U, U, U),
    "layers and model_type missing": ({"num_hidden_layers": ..., "model_type": ...}, I, C, E, E),
    "speculators": (
        {"speculators_model_type": "dflash", "transformer_layer_config": {
            "layer_types": [SLIDING] * 5, "sliding_window": 2048, "num_hidden_layers": 5}}, U, U, U, U,
    ),
    "not a draft class": ({"architectures": ["Qwen3ForCausalLM"]}, U, U, U, U),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("release", ["0.5.11", "0.5.13.post1", "0.5.14", "0.5.23"])
def test_verdict_by_release_alone_and_by_source(name: str, release: str) -> None:
    changes, *expected = VARIANTS[name]
    old = release in OLD
    for flag, wanted in zip((None, WINDOW), expected[:2] if old else expected[2:], strict=True):
        draft = config(**changes)
        by_release = look(draft, release, flag)
        if flag is not None:
            assert by_release.verdict is wanted, (flag, by_release.missing, codes(by_release))
            continue
        by_source = look(draft, release, flag, stock(release))
        assert by_release.verdict is wanted, (flag, by_release.missing, codes(by_release))
        assert by_source.verdict is wanted, (flag, by_source.missing, codes(by_source))
        assert attended(by_release) == attended(by_source)
        assert by_release.exit_code == (0 if wanted in (E, N) else 1)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_by_its_real_source(release: str) -> None:
    report = look(release=None, source=stock(release))
    old = release in OLD
    assert report.sglang_version == release
    assert attended(report) == (FULL_LAYERS if old else ENFORCED_LAYERS)
    assert report.verdict is (I if old else E)
    assert finding(report, "source-stock") == f"the installed SGLang is stock {release}"
    assert {e.strength for row in report.layers for e in row.evidence} == {Strength.CONFIG, Strength.SOURCE}
    assert report.compact_cache is False
    assert attended(report) == attended(look(release=release))


@pytest.mark.parametrize("release", RELEASES)
def test_the_flag_clamps_all_layers_and_repairs_nothing(release: str) -> None:
    report = look(release=release, flag=1024, source=stock(release))
    old = release in OLD
    assert report.cached_window == 1024
    assert report.compact_cache is True
    assert [row.attended for row in report.layers] == [1024] * 6
    assert report.verdict is C
    assert ("flag-no-repair" in codes(report)) is old
    assert ("causality-differs" in codes(report)) is old


def test_the_flag_of_the_window_s_own_size_leaves_the_windows_and_limits_the_full_layer() -> None:
    report = look(release="0.5.14", flag=WINDOW)
    assert report.verdict is E
    assert attended(report) == [(WINDOW, True)] * 5 + [(WINDOW, False)]
    assert [row.agrees for row in report.layers] == [True] * 5 + [False]
    assert "layer 5" in finding(report, "full-layers-clamped")
    assert [one.severity for one in report.findings if one.code == "full-layers-clamped"] == ["warning"]


def test_the_origin_story_same_log_line_two_verdicts() -> None:
    line = [LOG_LINE.format(window=None, compact=False)]
    old = look(release="0.5.11", log=line)
    new = look(release="0.5.14", log=line)
    assert (old.verdict, new.verdict) == (I, E)
    assert attended(old) == FULL_LAYERS
    assert attended(new) == ENFORCED_LAYERS
    assert {"window-not-applied", "causality-differs"} <= codes(old)
    assert (
        finding(old, "window-not-applied") == "layers 0-4: window 2048 declared, the whole context attended"
    )
    assert finding(old, "causality-differs").startswith("layers 0-4")
    assert "1.05 instead of 3.00" in finding(old, "cost-acceptance")
    assert "log-says-nothing" in codes(new)
    assert "log-says-nothing" not in codes(old)
    assert [remedy.kind for remedy in old.remedies] == ["plugin", "upgrade"]
    assert [remedy.kind for remedy in new.remedies] == ["none"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("is_causal", [True, False])
def test_an_explicit_is_causal_is_followed_from_0_5_18_on(release: str, is_causal: bool) -> None:
    draft = config(is_causal=is_causal)
    report = look(draft, release, source=stock(release))
    assert {row.causal_declared for row in report.layers} == {is_causal}
    if release in OLD:
        assert {row.causal for row in report.layers} == {False}
    elif NEW.index(release) >= NEW.index("0.5.18") or (release == "0.5.17" and is_causal):
        assert {row.causal for row in report.layers} == {is_causal}
        assert report.verdict is E
    else:
        assert [row.causal for row in report.layers] == [True] * 5 + [False]
        assert report.verdict is C
        assert any("0.5.18" in remedy.command for remedy in report.remedies)
    assert attended(report) == attended(look(draft, release))


DFLASH2 = {
    "architectures": ["DFlash2DraftModel"], "layer_types": [SLIDING] * 6, "is_causal": False,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 12], "conv_kernel_size": 4,
                      "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 8},
}  # fmt: skip


def test_a_class_that_a_release_does_not_have_makes_the_start_fail() -> None:
    draft = config(**DFLASH2)
    for release in ("0.5.14", "0.5.18"):
        for source in (None, stock(release)):
            report = look(draft, release, source=source)
            assert report.verdict is U
            assert "DFlash2DraftModel" in finding(report, "start-fails")
    report = look(draft, "0.5.23", source=stock("0.5.23"))
    assert attended(report) == [(WINDOW, False)] * 6
    assert report.verdict is E


def test_laguna() -> None:
    draft = config(
        architectures=["DFlashLagunaForCausalLM"], model_type="laguna", layer_types=[SLIDING] * 6,
        use_sliding_window=...,
    )  # fmt: skip
    for source in (None, stock("0.5.17")):
        report = look(draft, "0.5.17", source=source)
        assert (report.verdict, attended(report)) == (E, [(WINDOW, True)] * 6)
    assert look(draft, "0.5.14").verdict is U


NEMOTRON = {
    "has_embed_tokens": True, "eagle_aux_hidden_state_layer_ids": [2, 13], "sample_from_anchor": False,
    "quantization_config": {"quant_algo": "W4A16_NVFP4"}, "sliding_window": ...,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 12], "swa_window_size": 512,
                      "sample_from_anchor": False},
}  # fmt: skip


def test_nemotron_s_own_field_is_read_from_0_5_19_on() -> None:
    draft = config(**NEMOTRON, model_type="llama")
    for release, wanted in (("0.5.14", U), ("0.5.18", U), ("0.5.19", E), ("0.5.23", E)):
        for source in (None, stock(release)):
            report = look(draft, release, source=source)
            assert report.verdict is wanted, (release, report.missing)
            assert [row.declared for row in report.layers] == [512] * 5 + [None]


def test_domino_and_mla_drafts() -> None:
    domino = {
        "projector_type": "domino",
        "gru_hidden_dim": 128,
        "emb_dim": 256,
        "mask_token_id": 1,
        "shift_label": True,
        "pure_draft_prefix_len": 1,
    }
    report = look(config(dflash_config=domino), "0.5.23", source=stock("0.5.23"))
    assert (report.verdict, attended(report)) == (E, ENFORCED_LAYERS)
    report = look(config(attention_mode="mla"), "0.5.23")
    assert "mla-drafter" in codes(report)


def test_rows_name_the_field_that_they_come_from() -> None:
    report = look(
        config(text_config={"layer_types": [SLIDING] * 5 + [FULL], "sliding_window": 512, "is_causal": True})
    )
    assert report.layers[0].reason.startswith(
        "text_config.layer_types[0], text_config.sliding_window 512, text_config.is_causal true"
    )
    assert [row.declared for row in report.layers] == [512] * 5 + [None]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("0.5.14+cu129", E), ("v0.5.14", E), ("0.5.16.post1", E), ("0.5.10", U), ("0.5.24", U), ("0.6.0", U),
        ("0.5.14.dev3", U), ("0.5.16.dev3", E), ("0.5.13.dev3", I), ("nonsense", U), (None, U),
    ],
)  # fmt: skip
def test_versions_that_are_no_plain_release(version: str | None, verdict: Verdict) -> None:
    report = look(release=version)
    assert report.verdict is verdict
    assert bool(report.missing) is (verdict is U)
