"""The drafter's config, read as SGLang 0.5.14 reads it; what cannot be served as meant is refused."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang import windows
from dflash_sglang.windows import FULL, SLIDING, LayerWindow, WindowError


def config(**fields):
    return {"num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL], "sliding_window": 256} | fields


def test_a_sliding_layer_sees_its_window_causally_and_a_full_layer_everything_both_ways():
    layers = windows.attended(config())
    assert layers == [
        LayerWindow(0, 256, causal=True),
        LayerWindow(1, 256, causal=True),
        LayerWindow(2, None, causal=False),
    ]
    assert [layer.window_left for layer in layers] == [255, 255, -1]


@given(
    types=st.lists(st.sampled_from([SLIDING, FULL]), min_size=1, max_size=12),
    window=st.integers(2, 1 << 20),
    as_object=st.booleans(),
    nested=st.booleans(),
)
def test_any_mix_of_layers_is_read_the_same_from_a_mapping_or_an_object_nested_or_not(
    types, window, as_object, nested
):
    fields = {"num_hidden_layers": len(types), "layer_types": types, "sliding_window": window}
    given_config = {"text_config": SimpleNamespace(**fields) if as_object else fields} if nested else fields
    if as_object:
        given_config = SimpleNamespace(**given_config)
    layers = windows.attended(given_config)
    assert [layer.window for layer in layers] == [window if kind == SLIDING else None for kind in types]
    assert [layer.causal for layer in layers] == [kind == SLIDING for kind in types]
    assert windows.lost_window(fields, given_config) is None


def test_the_text_config_comes_before_the_top_level():
    layers = windows.attended(config(text_config=config(sliding_window=64)))
    assert [layer.window for layer in layers] == [64, 64, None]


def test_without_layer_types_every_layer_is_full():
    assert windows.attended({"num_hidden_layers": 2}) == [
        LayerWindow(i, None, causal=False) for i in range(2)
    ]


def test_more_layer_types_than_layers_are_no_fault():
    assert len(windows.attended(config(num_hidden_layers=2))) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layer_types": "sliding_attention"}, "layer_types must be a list"),
        ({"layer_types": 7}, "layer_types must be a list"),
        ({"layer_types": [SLIDING]}, "names 1 layers, but num_hidden_layers is 3"),
        ({"layer_types": [SLIDING, "chunked_attention", FULL]}, "layer_types[1] is 'chunked_attention'"),
        ({"layer_types": [SLIDING, None, FULL]}, "layer_types[1] is None"),
        ({"sliding_window": None}, "there is no sliding_window"),
        ({"sliding_window": "256"}, "must be a number of tokens, not '256'"),
        ({"sliding_window": True}, "must be a number of tokens, not True"),
        ({"sliding_window": 256.0}, "must be a number of tokens, not 256.0"),
        ({"sliding_window": 1}, "fewer than 2 tokens"),
        ({"sliding_window": 0}, "fewer than 2 tokens"),
        ({"sliding_window": -5}, "fewer than 2 tokens"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused_with_the_field(fields, says):
    with pytest.raises(WindowError) as error:
        windows.attended(config(**fields))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("written", "seen", "says"),
    [
        ({"sliding_window": 2048}, {}, "no layer_types"),
        ({"sliding_window": 2048, "use_sliding_window": True}, {"layer_types": [FULL] * 3}, "no layer_types"),
        ({"layer_types": [SLIDING] * 3, "sliding_window": 2048}, {"layer_types": [FULL] * 3}, "SGLang sees"),
        ({"layer_types": [SLIDING] * 3, "sliding_window": 2048}, {}, "SGLang sees None"),
        (
            {"layer_types": [SLIDING] * 3},
            {"layer_types": [SLIDING] * 3, "sliding_window": 4096},
            "has no sliding_window, but SGLang sees 4096",
        ),
        (
            {"layer_types": [SLIDING] * 3, "sliding_window": 256},
            {"layer_types": [SLIDING] * 3, "sliding_window": 512},
            "has sliding_window 256, but SGLang sees 512",
        ),
        (
            {"layer_types": [SLIDING] * 3, "sliding_window": 256},
            {"layer_types": (SLIDING,) * 3, "sliding_window": 256},
            None,
        ),
        ({"sliding_window": 2048, "use_sliding_window": False}, {}, None),
        ({"sliding_window": None}, {}, None),
        (
            {"sliding_window": 2048, "use_sliding_window": True},
            {"layer_types": [FULL, SLIDING, SLIDING]},
            None,
        ),
        ({"layer_types": [FULL] * 3, "sliding_window": 2048}, {"layer_types": [FULL] * 3}, None),
    ],
)
def test_a_window_that_would_silently_become_full_attention_is_noticed(written, seen, says):
    problem = windows.lost_window({"num_hidden_layers": 3, **written}, {"num_hidden_layers": 3, **seen})
    assert problem is None if says is None else says in problem


def test_a_word_on_causality_that_would_not_be_followed_is_noticed():
    for said in ({"is_causal": False}, {"dflash_config": {"causal": False}}, {"is_causal": True}):
        given_config = config(**said)
        assert "is_causal" in windows.contradiction(given_config, windows.attended(given_config))
    all_sliding = config(layer_types=[SLIDING] * 3, is_causal=True)
    assert windows.contradiction(all_sliding, windows.attended(all_sliding)) is None
    assert windows.contradiction(config(), windows.attended(config())) is None


def test_layers_are_described_in_runs():
    assert windows.describe(windows.attended(config())) == "0-1 sliding 256 causal, 2 full"
    assert windows.describe([]) == ""
