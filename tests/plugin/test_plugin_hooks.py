"""Pieces of the hooks that need no SGLang."""

from types import SimpleNamespace

import pytest

from dflash_sglang import hooks, report
from dflash_sglang.windows import LayerWindow, WindowError


def test_window_indices_stay_in_the_drafts_own_pool_when_the_target_has_a_window_pool():
    translating = SimpleNamespace(translate_loc_from_full_to_swa=lambda loc: loc)
    own_pool = SimpleNamespace()
    backend = SimpleNamespace(token_to_kv_pool_allocator=translating)
    hooks._keep_untranslated(SimpleNamespace(attn_backend=backend, token_to_kv_pool=own_pool))
    assert backend.token_to_kv_pool_allocator is own_pool


@pytest.mark.parametrize(
    ("allocator", "pool"),
    [
        (SimpleNamespace(), SimpleNamespace()),
        (
            SimpleNamespace(translate_loc_from_full_to_swa=len),
            SimpleNamespace(translate_loc_from_full_to_swa=len),
        ),
    ],
)
def test_nothing_is_changed_where_there_is_nothing_to_translate(allocator, pool):
    backend = SimpleNamespace(token_to_kv_pool_allocator=allocator)
    hooks._keep_untranslated(SimpleNamespace(attn_backend=backend, token_to_kv_pool=pool))
    assert backend.token_to_kv_pool_allocator is allocator
    hooks._keep_untranslated(SimpleNamespace(attn_backend=SimpleNamespace(), token_to_kv_pool=pool))


def live(
    state: hooks.State, declared: list[LayerWindow], actual: list[LayerWindow], runner_window: int | None
):
    runner = SimpleNamespace(sliding_window_size=runner_window)
    hooks._check_live(state, runner, {"num_hidden_layers": len(declared)}, declared, actual)


@pytest.mark.parametrize("release", ["0.5.11", "0.5.14"])
def test_layers_that_were_built_otherwise_than_declared_end_the_start(release):
    state = hooks.State(release)
    sliding, full = LayerWindow(0, 256, causal=True), LayerWindow(0, None, causal=False)
    live(state, [sliding], [sliding], 255)
    with pytest.raises(WindowError, match=r"should have windows \[256\], but were built with \[None\]"):
        live(state, [sliding], [full], None)
    with pytest.raises(WindowError, match="the draft runner's window is None, its layers' 255"):
        live(state, [sliding], [sliding], None)


def test_a_patched_layer_must_be_causal_too():
    with pytest.raises(WindowError, match="were built as 0 sliding 256"):
        live(
            hooks.State("0.5.11"),
            [LayerWindow(0, 256, causal=True)],
            [LayerWindow(0, 256, causal=False)],
            255,
        )


def test_a_refusal_is_raised_for_dflash_only():
    state = hooks.State("0.5.11", refusal="because")
    for algorithm in (None, "EAGLE3", "NGRAM"):
        hooks.guard(state, None, SimpleNamespace(speculative_algorithm=algorithm))
    with pytest.raises(WindowError, match="dflash-sglang: DFLASH does not start: because"):
        hooks.guard(state, None, SimpleNamespace(speculative_algorithm="DFLASH"))


@pytest.mark.parametrize("name", ["speculative_draft_window_size", "speculative_dflash_draft_window_size"])
def test_the_draft_window_flag_is_reported_under_either_name(name):
    assert hooks._cached(SimpleNamespace(**{name: 512})) == 512
    assert hooks._cached(SimpleNamespace(**{name: None})) is None
    assert hooks._cached(SimpleNamespace()) is None


def test_a_report_is_one_log_line_of_json():
    made = report.build(mode="idle", sglang="0.5.11", note="a\nb")
    line = report.log_line(made)
    assert line.startswith(report.LOG_PREFIX + '{"schema":1,')
    assert "\n" not in line
