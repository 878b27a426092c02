"""Readers of the JSON answers: /server_info, /v1/loads, /get_load, /model_info, /v1/models, meta_info."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.profile import Algorithm
from dflash_backend.sglang.decode import FormatError
from dflash_backend.sglang.loads import read_loads
from dflash_backend.sglang.meta_info import read_meta_info, read_usage
from dflash_backend.sglang.server_info import (
    read_effective_settings,
    read_model_info,
    read_models,
    read_server_info,
)

DATA = Path(__file__).parent.parent / "data"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(
    [
        "internal_states", "memory_usage", "graph", "weight", "speculative_algorithm", "prefill", "decode",
        "model_path", "loads", "num_reqs", "num_waiting_reqs", "speculative", "data", "launch_command",
        "spec_verify_ct", "completion_tokens", "spec_accept_histogram", "finish_reason", "dp_size",
        "speculative_draft_window_size", "version", "max_running_requests",
    ]
)  # fmt: skip
ANSWERS = st.dictionaries(
    KEYS, st.recursive(JSON, lambda x: st.dictionaries(KEYS, x, max_size=4), max_leaves=8)
)


def capture(folder: str, name: str) -> bytes:
    return (DATA / "captures" / folder / name).read_bytes()


def test_dflash_on_0_5_11_has_the_old_window_key() -> None:
    settings = read_effective_settings(capture("sglang-0.5.11-cpu-dflash", "server_info.json"))
    assert settings.version == "0.5.11"
    assert settings.algorithm is Algorithm.DFLASH
    assert (settings.model, settings.drafter) == ("/models/target", "/models/draft")
    assert (settings.block_size, settings.window, settings.window_known) == (8, None, True)
    assert (settings.max_running_requests, settings.max_total_tokens) == (48, 8192)
    assert settings.memory_mib["weights"] == pytest.approx(0.02 * 1024)
    assert settings.memory_mib["graphs"] == 0.0
    assert settings.raw["attention_backend"] == "torch_native"
    assert "internal_states" not in settings.raw


def test_ar_on_0_5_23_has_graph_memory_by_phase() -> None:
    info = read_server_info(capture("sglang-0.5.23-cpu", "server_info.json"))
    assert info.settings.version == "0.5.23"
    assert info.settings.algorithm is Algorithm.NONE
    assert info.settings.block_size is None
    assert info.settings.memory_mib == {"weights": 30.72, "kv_cache": 31.744, "graphs": 0.0}
    assert info.states[0].last_gen_throughput == pytest.approx(4.898957773609123)
    assert info.states[0].accept_length is None


def test_cut_answer_and_gateway() -> None:
    cut = read_server_info((DATA / "samples/23_server_info_min.json").read_bytes())
    assert cut.settings.max_running_requests == 128
    assert cut.settings.memory_mib["weights"] == pytest.approx(0.98 * 1024)
    assert cut.states[0].last_gen_throughput == pytest.approx(135.84764030950588)
    gateway = read_server_info((DATA / "samples/24_server_info_gateway_pd.json").read_bytes())
    assert gateway.role == "gateway"
    assert gateway.workers == {
        "prefill": ("http://prefill1:8080",),
        "decode": ("http://decode1:8080", "http://decode2:8080"),
    }
    assert (gateway.states[0].accept_length, gateway.states[0].last_gen_throughput) == (3.5, 2048.5)
    assert gateway.settings.algorithm is None


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": 8}, (Algorithm.DDTREE, 8)),
        ({"speculative_algorithm": "ddtree"}, (Algorithm.DDTREE, None)),
        (
            {"speculative_algorithm": "DFLASH", "speculative_dflash_tree_verify": True},
            (Algorithm.DDTREE, None),
        ),
        (
            {"speculative_algorithm": "DFLASH", "speculative_dflash_tree_verify": False},
            (Algorithm.DFLASH, None),
        ),
        ({"speculative_algorithm": "EAGLE3"}, (None, None)),
        ({"speculative_algorithm": None}, (Algorithm.NONE, None)),
        ({"speculative_algorithm": 7}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_algorithm(extra: dict[str, object], expected: tuple[Algorithm | None, int | None]) -> None:
    settings = read_effective_settings({"model_path": "m", **extra})
    assert (settings.algorithm, settings.budget) == expected


def test_window_spellings() -> None:
    assert read_effective_settings({"model_path": "m", "speculative_draft_window_size": 2048}).window == 2048
    old = read_effective_settings({"model_path": "m", "speculative_dflash_draft_window_size": 512})
    assert (old.window, old.window_known) == (512, True)
    assert not read_effective_settings({"model_path": "m"}).window_known


def test_granted_requests_are_those_of_all_replicas() -> None:
    settings = read_effective_settings(
        {
            "model_path": "m",
            "dp_size": 2,
            "max_running_requests": 16,
            "internal_states": [{"effective_max_running_requests_per_dp": 6}],
        }
    )
    assert settings.max_running_requests == 12


def test_secrets_never_leave() -> None:
    info = read_server_info(
        {
            "model_path": "m",
            "api_key": "abcd-secret-1",
            "admin_api_key": "abcd-secret-2",
            "nested": {"hf_token": "abcd-secret-3", "list": [{"password": "abcd-secret-4"}]},
            "launch_command": [
                "python",
                "-m",
                "sglang.launch_server",
                "--api-key",
                "abcd-secret-5",
                "--port",
                "1",
            ],
            "max_total_tokens": 4096,
            "internal_states": [{"api_key": "abcd-secret-6", "extra": "--admin-api-key=abcd-secret-7"}],
        }
    )
    assert "abcd-secret" not in repr(info)
    assert info.launch_command is not None
    assert "--port 1" in info.launch_command
    assert info.settings.max_total_tokens == 4096


def test_loads_of_each_release() -> None:
    old = read_loads(capture("sglang-0.5.11-cpu-dflash", "v1-loads.json"))
    assert (old.version, old.running, old.waiting, old.max_total_tokens) == ("0.5.11", 0, 0, 8192)
    assert (old.gen_throughput, old.accept_length) == (42.56, 1.0)
    assert old.ranks[0].max_running_requests == 48
    new = read_loads(capture("sglang-0.5.23-cpu", "v1-loads.json"))
    assert (new.version, new.running, new.token_usage) == ("0.5.23", 0, 0.0)
    assert new.accept_length is None
    assert new.ranks[0].kv_cache_gb == 0.031


def test_get_load_and_its_absence() -> None:
    load = read_loads(capture("sglang-0.5.14-cpu", "get_load.json"))
    assert (load.running, load.waiting, load.used_tokens) == (0, 0, 0)
    assert load.gen_throughput is None
    with pytest.raises(FormatError, match="Not Found") as caught:
        read_loads(capture("sglang-0.5.23-cpu", "get_load.json"))
    assert "0.5.21" in caught.value.next_step


def test_loads_over_replicas() -> None:
    reading = read_loads(
        {
            "loads": [
                {"num_running_reqs": 2, "token_usage": 0.2, "speculative": {"accept_length": 3.0}},
                {"num_running_reqs": 3, "token_usage": 0.4, "speculative": {"accept_length": 0.0}},
            ]
        }
    )
    assert (reading.running, reading.accept_length) == (5, 3.0)
    assert reading.token_usage == pytest.approx(0.3)
    assert reading.waiting is None


def test_model_answers() -> None:
    info = read_model_info(capture("sglang-0.5.23-cpu", "model_info.json"))
    assert (info.model_path, info.served_model_name) == ("/models/target", "tiny-qwen3")
    assert info.architectures == ("Qwen3ForCausalLM",)
    assert info.is_generation is True
    (model,) = read_models(capture("sglang-0.5.11-cpu", "v1-models.json"))
    assert (model.id, model.max_model_len) == ("tiny-qwen3", 16384)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("sglang-0.5.11-cpu-dflash", (31, 0, 217, ())),
        ("sglang-0.5.14-cpu-dflash", (31, 0, 217, (31,))),
        ("sglang-0.5.23-cpu", None),
    ],
)
def test_meta_info_of_a_batch(folder: str, expected: tuple[int, int, int, tuple[int, ...]] | None) -> None:
    answers = json.loads(capture(folder, "generate-batch4.json"))
    assert len(answers) == 4
    meta = read_meta_info(answers[0]["meta_info"])
    assert (meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens) == (2, 32, 1)
    assert meta.finish_reason == "length"
    assert meta.retractions == 0
    if expected is None:
        assert meta.spec is None
        assert meta.first_token_s == pytest.approx(0.35254198)
    else:
        assert meta.spec is not None
        spec = meta.spec
        assert (spec.verify_ct, spec.accepted_drafts, spec.proposed_drafts, spec.histogram) == expected
        assert spec.accept_length == pytest.approx(32 / 31)


def test_meta_info_of_newest_names_only() -> None:
    meta = read_meta_info(
        {
            "completion_tokens": 40,
            "spec_verify_ct": 10,
            "spec_num_correct_drafts": 30,
            "spec_num_proposed_drafts": 70,
            "spec_correct_drafts_histogram": [1, 2, 3, 4],
        }
    )
    assert meta.spec is not None
    assert (meta.spec.accept_length, meta.spec.accepted_drafts, meta.spec.histogram) == (
        4.0,
        30,
        (1, 2, 3, 4),
    )


def test_usage() -> None:
    usage = read_usage(
        {"prompt_tokens": 7, "completion_tokens": 24, "prompt_tokens_details": {"cached_tokens": 3}}
    )
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 24, 3)


def refusal(reader: Callable[..., object], value: object) -> ConsoleError | None:
    try:
        reader(value)
    except ConsoleError as error:
        return error
    return None


READERS: list[Callable[..., object]] = [
    read_server_info,
    read_loads,
    read_model_info,
    read_models,
    read_meta_info,
    read_usage,
]


@pytest.mark.parametrize("reader", READERS)
@given(value=JSON | ANSWERS)
def test_any_json_is_read_or_refused(reader: Callable[..., object], value: object) -> None:
    refused = refusal(reader, value)
    assert refused is None or refused.next_step


@pytest.mark.parametrize("reader", READERS[:4])
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(reader: Callable[..., object], data: bytes) -> None:
    refused = refusal(reader, data)
    assert refused is None or refused.next_step


@given(
    ANSWERS, st.lists(st.sampled_from(["api_key", "admin_api_key", "hf_token", "db_password"]), min_size=1)
)
def test_a_secret_anywhere_never_leaves(answer: dict[str, object], names: list[str]) -> None:
    secret = "zq-secret-value-77"
    for name in names:
        answer = {"model_path": "m", "wrapped": [{name: secret}], name: secret, "inner": answer}
    refused = refusal(read_server_info, answer)
    assert secret not in (str(refused) if refused else repr(read_server_info(answer)))


def test_deep_nesting_is_refused() -> None:
    deep = '{"model_path": "m", "a": ' + "[" * 900 + "]" * 900 + "}"
    with pytest.raises(FormatError):
        read_server_info(deep)
    with pytest.raises(FormatError):
        read_server_info("[" * 100_000)
