"""Drafter configs in the forms that are about."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import ConsoleError
from dflash_backend.sglang.decode import FormatError
from dflash_backend.sglang.draft_config import DraftConfig, read_draft_config

BASE: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 3,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17]},
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 2048,
    "use_sliding_window": True,
}


def read(**changes: Any) -> DraftConfig:
    return read_draft_config({**BASE, **changes})


def test_plain_form() -> None:
    config = read()
    assert (config.form, config.layers, config.block_size) == ("dflash", 3, 16)
    assert config.windows == (2048, 2048, None)
    assert (config.mask_token_id, config.target_layer_ids) == (151669, (1, 9, 17))
    assert config.notes == ()


def test_settings_at_the_top_or_in_the_section() -> None:
    config = read(block_size=None, dflash_config={"block_size": 8}, mask_token_id=7, target_layer_ids=[1, 2])
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (8, 7, (1, 2))


def test_nested_text_config_comes_first() -> None:
    config = read(
        text_config={"sliding_window": 4096, "layer_types": ["sliding_attention"], "num_hidden_layers": 1}
    )
    assert (config.windows, config.layers) == ((4096,), 1)


def test_speculators_form() -> None:
    config = read_draft_config(
        {
            "speculators_model_type": "dflash",
            "block_size": 8,
            "mask_token_id": 5,
            "aux_hidden_state_layer_ids": None,
            "sliding_window_non_causal": True,
            "speculators_config": {"verifier": {"name_or_path": "some/target"}},
            "transformer_layer_config": {"num_hidden_layers": 5, "sliding_window": 2048,
                                         "layer_types": ["sliding_attention"] * 5},
        }
    )  # fmt: skip
    assert (config.form, config.layers, config.windows) == ("speculators", 5, (2048,) * 5)
    assert (config.verifier, config.is_causal, config.target_layer_ids) == ("some/target", False, None)
    assert any("Speculators" in note for note in config.notes)


@pytest.mark.parametrize(
    ("changes", "windows", "note"),
    [
        ({"layer_types": "sliding_attention"}, (), "not a list"),
        ({"layer_types": ["sliding_attention"]}, (2048,), "1 entries for 3 layers"),
        ({"layer_types": ["chunked", "full_attention", None]}, (), "unknown kinds"),
        ({"sliding_window": None}, (), "without a sliding_window"),
        ({"sliding_window": "big"}, (), "no positive whole number"),
        ({"layer_types": None}, (), "without layer_types"),
        ({"layer_types": ["full_attention"] * 3}, (None, None, None), "unused"),
        ({"layer_types": None, "sliding_window": None}, (None, None, None), ""),
        ({"block_size": None}, (2048, 2048, None), "takes 16"),
        ({"dflash_config": {"block_size": 8}}, (2048, 2048, None), "two block sizes"),
    ],
)
def test_oddities(changes: dict[str, Any], windows: tuple[int | None, ...], note: str) -> None:
    config = read(**changes)
    assert config.windows == windows
    assert any(note in n for n in config.notes) if note else not any("sliding" in n for n in config.notes)


def test_a_target_is_recognised_as_such() -> None:
    config = read_draft_config({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36})
    assert config.form == "target"


@pytest.mark.parametrize("value", ["[]", "3", "{}", '{"a": 1}', "{"])
def test_other_json_is_refused(value: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_draft_config(value)
    assert caught.value.next_step


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(BASE)), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*BASE, "text_config", "speculators_config", "is_causal"]), VALUES))
def test_any_object_is_read_or_refused(changes: dict[str, Any]) -> None:
    assert isinstance(read(**changes), DraftConfig)
    try:
        read_draft_config(changes)
    except ConsoleError:
        assert not {"architectures", "dflash_config", "layer_types", "block_size"} & set(changes)
