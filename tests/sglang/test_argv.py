# ruff: noqa: E501  (one case a line reads better)
"""From profile to command: the right spelling for each release, and what a release cannot do is refused."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_backend.core.errors import ConfigError, RefusedError
from dflash_backend.core.profile import Algorithm, Profile, Program, SecretRef
from dflash_backend.sglang.argv import build_argv, compose, interpreter
from dflash_backend.sglang.command import HostAbilities
from dflash_backend.sglang.engine_argv import ENGINE_OPTIONS
from dflash_backend.sglang.options import option_table
from dflash_backend.sglang.versions import releases

PATCHED = HostAbilities(
    options=frozenset({*option_table().at("0.5.14"), "speculative-ddtree-budget", "speculative-ddtree-topk"})
)


def profile(**changes):
    base = {"name": "p", "target": "Qwen/Qwen3-8B", "options": {"tp-size": 2}}
    if changes.get("algorithm", Algorithm.NONE) is not Algorithm.NONE:
        base |= {"drafter": "z-lab/Qwen3-8B-DFlash-b16", "block_size": 16}
    return Profile(**{**base, **changes})


def build(p, version="0.5.14", abilities=None):
    return build_argv(p, version, python="/opt/venv", port=30001, abilities=abilities)


def value_of(argv, option):
    return argv[argv.index(option) + 1]


def test_a_plain_server():
    command = build(profile())
    assert list(command.argv) == shlex.split(
        "/opt/venv/bin/python -m sglang.launch_server --model-path Qwen/Qwen3-8B --host 127.0.0.1 --port 30001 "
        "--tp-size 2 --enable-metrics --decode-log-interval 20"
    )
    assert command.warnings == ()


@pytest.mark.parametrize(
    ("python", "interpreter_"),
    [
        (None, "python3"),
        ("", "python3"),
        ("/root/venv", "/root/venv/bin/python"),
        ("/root/venv/", "/root/venv/bin/python"),
        ("/usr/bin/python3.12", "/usr/bin/python3.12"),
        ("python3.11", "python3.11"),
    ],
)
def test_the_interpreter_of_a_host(python, interpreter_):
    assert interpreter(python) == interpreter_


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("0.5.11", "--speculative-dflash-draft-window-size"),
        ("0.5.12", "--speculative-draft-window-size"),
        ("0.5.13.post1", "--speculative-draft-window-size"),
        ("0.5.19", "--speculative-draft-window-size"),
        ("0.5.20", "--speculative-draft-window-size"),
        ("0.5.23", "--speculative-draft-window-size"),
    ],
)
def test_the_window_is_spelled_as_the_release_knows_it(version, option):
    command = build(profile(algorithm=Algorithm.DFLASH, window=2048), version)
    assert value_of(command.argv, option) == "2048"
    assert sum("window-size" in word for word in command.argv) == 1


def test_every_word_of_a_built_command_is_known_to_its_release():
    rich = profile(
        algorithm=Algorithm.DFLASH,
        window=2048,
        options={
            "tp-size": 8, "attention-backend": "triton", "cuda-graph-max-bs-decode": 8, "context-length": "64Ki",
            "disable-piecewise-cuda-graph": True, "mem-fraction-static": 0.8, "max-running-requests": 8,
        },
    )  # fmt: skip
    for version in releases():
        here = option_table().at(version)
        for word in build(rich, version).argv:
            if word.startswith("--"):
                assert word[2:] in here, (version, word)


@pytest.mark.parametrize(
    ("options", "version", "words"),
    [
        ({"cuda-graph-max-bs-decode": 8}, "0.5.11", "--cuda-graph-max-bs 8"),
        ({"cuda-graph-max-bs": 8}, "0.5.23", "--cuda-graph-max-bs-decode 8"),
        ({"disable-piecewise-cuda-graph": True}, "0.5.11", "--disable-piecewise-cuda-graph"),
        ({"disable-piecewise-cuda-graph": True}, "0.5.23", "--cuda-graph-backend-prefill disabled"),
        ({"disable-piecewise-cuda-graph": False}, "0.5.23", ""),
        ({"cuda-graph-backend-prefill": "disabled"}, "0.5.11", "--disable-piecewise-cuda-graph"),
        ({"enable-metrics": False}, "0.5.14", ""),
        ({"decode-log-interval": 1}, "0.5.14", "--decode-log-interval 1"),
        ({"context-length": "64k"}, "0.5.14", "--context-length 64k"),
        ({"prompt-tokens-buckets": "tse 1000 2 8"}, "0.5.14", "--prompt-tokens-buckets tse 1000 2 8"),
        ({"chunked-prefill-size": -1}, "0.5.14", "--chunked-prefill-size=-1"),
        ({"gc-threshold": 5}, "0.5.14", "--gc-threshold 5"),
        ({"model-checksum": True}, "0.5.14", "--model-checksum"),
        ({"model-checksum": "abc"}, "0.5.14", "--model-checksum abc"),
        (
            {"speculative-enable-w4a4-mxfp4-megamoe": False},
            "0.5.22",
            "--no-speculative-enable-w4a4-mxfp4-megamoe",
        ),
        ({"json-model-override-args": '{"a": 1}'}, "0.5.14", "--json-model-override-args '{\"a\": 1}'"),
    ],
)
def test_options_are_spelled_for_the_release(options, version, words):
    argv = list(build(profile(options=options), version).argv)
    start = argv.index("30001") + 1
    rest = [w for w in argv[start:] if w not in ("--enable-metrics",)]
    if "decode-log-interval" not in options:
        rest = rest[:-2]
    assert rest == shlex.split(words)


@pytest.mark.parametrize(
    ("changes", "version", "error", "words"),
    [
        ({"options": {"mem-fractoin-static": 0.8}}, "0.5.14", ConfigError, "did you mean mem-fraction-static?"),
        ({"options": {"tp-size": "two"}}, "0.5.14", ConfigError, "takes a whole number, not 'two'"),
        ({"options": {"tp-size": 2.5}}, "0.5.14", ConfigError, "takes a whole number"),
        ({"options": {"tp-size": True}}, "0.5.14", ConfigError, "takes a whole number, not true"),
        ({"options": {"enable-metrics": 1}}, "0.5.14", ConfigError, "is a switch"),
        ({"options": {"mem-fraction-static": "nan"}}, "0.5.14", ConfigError, "takes a number"),
        ({"options": {"kv-cache-dtype": "fp8_e4m4"}}, "0.5.14", ConfigError, "did you mean 'fp8_e4m3'?"),
        ({"options": {"kv-cache-dtype": "mxfp8"}}, "0.5.14", RefusedError, "SGLang 0.5.16 to 0.5.20 would take it|0.5.2"),
        ({"options": {"speculative-draft-sink-size": 4}}, "0.5.20", RefusedError, "came with 0.5.21"),
        ({"options": {"prefill-round-robin-balance": True}}, "0.5.23", RefusedError, "has no option"),
        ({"options": {"enable-expert-distribution-metrics": True}}, "0.5.18", RefusedError, "has been retired"),
        ({"options": {"port": 1}}, "0.5.14", ConfigError, "the server's port"),
        ({"options": {"model-path": "x"}}, "0.5.14", ConfigError, "set it by target"),
        ({"options": {"speculative-draft-window-size": 5}}, "0.5.14", ConfigError, "set it by window"),
        ({"options": {"tp-size": 2, "tensor-parallel-size": 2}}, "0.5.14", ConfigError, "set the same thing"),
        ({"options": {"api-key": "x"}}, "0.5.14", RefusedError, "every user of the host can read it"),
        ({"extra": ("--api-key", "x")}, "0.5.14", RefusedError, "every user of the host can read it"),
        ({"extra": ("--tp-sise", "2")}, "0.5.14", ConfigError, "did you mean tp-size?"),
        ({"extra": ("--port=1",)}, "0.5.14", ConfigError, "the server's port"),
        ({"extra": ("-x",)}, "0.5.14", ConfigError, "options start with --"),
        ({"algorithm": Algorithm.DFLASH, "drafter": None}, "0.5.14", ConfigError, "needs a drafter"),
        ({"algorithm": Algorithm.DFLASH, "window": 8}, "0.5.14", ConfigError, "smaller than the block of 16"),
        ({"algorithm": Algorithm.DFLASH, "options": {"pp-size": 2}}, "0.5.14", RefusedError, "pipeline parallelism of 1 only"),
        ({"algorithm": Algorithm.DFLASH, "options": {"pipeline-parallel-size": 2}}, "0.5.23", RefusedError, "pipeline"),
        ({"algorithm": Algorithm.DFLASH, "options": {"enable-dp-attention": True}}, "0.5.22", RefusedError, "DP attention"),
        ({"algorithm": Algorithm.DFLASH, "options": {"enable-dp-attention": True}}, "0.5.23", ConfigError, "enable-dp-lm-head"),
        ({"algorithm": Algorithm.DFLASH, "options": {"attn-dp-size": 2}}, "0.5.22", RefusedError, "DP attention"),
        ({"algorithm": Algorithm.DFLASH, "options": {"device": "cpu"}}, "0.5.16", RefusedError, "on a CPU"),
        ({"algorithm": Algorithm.DFLASH, "options": {"speculative-num-draft-tokens": 8}}, "0.5.14", ConfigError, "must be equal"),
        ({"algorithm": Algorithm.DDTREE, "budget": 8}, "0.5.14", ConfigError, "DDTREE is in no SGLang release"),
        ({}, "0.5.10", RefusedError, "too old"),
        ({}, "banana", ConfigError, "is not a version"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_refused_with_the_reason(changes, version, error, words):
    with pytest.raises(error, match=words) as caught:
        build(profile(**changes), version)
    assert type(caught.value) is error


def test_all_reasons_are_collected_and_the_command_is_still_shown():
    command = compose(
        profile(algorithm=Algorithm.DFLASH, window=8, options={"pp-size": 2, "tp-sise": 1}),
        "0.5.14", python=None, port=1,
    )  # fmt: skip
    assert len(command.refusals) == 3
    assert "--speculative-algorithm DFLASH" in command.shell()


def tree(**options):
    options = {"attention-backend": "triton", "page-size": 1} | options
    return profile(
        algorithm=Algorithm.DDTREE,
        budget=8,
        topk=4,
        options={k: v for k, v in options.items() if v is not None},
    )


def test_a_tree_on_a_host_that_lists_its_options():
    command = build(tree(), abilities=PATCHED)
    assert value_of(command.argv, "--speculative-algorithm") == "DDTREE"
    assert value_of(command.argv, "--speculative-ddtree-budget") == "8"
    assert value_of(command.argv, "--speculative-ddtree-topk") == "4"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention-backend": None}, "none is set"),
        ({"attention-backend": "fa4"}, "cannot verify a tree"),
        ({"attention-backend": "trtllm_mha"}, "cannot verify a tree"),
        ({"attention-backend": "trtllm_mla"}, "cannot verify a tree"),
        ({"attention-backend": "flashmla"}, "cannot verify a tree"),
        ({"prefill-attention-backend": "fa4"}, "prefill-attention-backend fa4 cannot verify a tree"),
        ({"page-size": 64}, "needs page-size 1, not 64"),
        ({"speculative-use-rejection-sampling": True}, "rejection sampling"),
    ],
)
def test_a_tree_needs_a_backend_that_takes_its_mask(options, words):
    with pytest.raises((ConfigError, RefusedError), match=words):
        build(tree(**options), abilities=PATCHED)


def test_flashinfer_takes_a_tree_mask_but_not_for_mla_targets():
    plain = tree(**{"attention-backend": "flashinfer"})
    assert build(plain, abilities=PATCHED).refusals == ()
    kimi = Profile(**{**_fields(plain), "target": "moonshotai/Kimi-K2.6"})
    with pytest.raises(RefusedError, match="for MLA targets"):
        build(kimi, abilities=PATCHED)


def _fields(p):
    return {name: getattr(p, name) for name in p.__dataclass_fields__}


def test_backends_that_the_gpu_does_not_have():
    sm120 = HostAbilities(compute_capability=(12, 0))
    with pytest.raises(RefusedError, match=r"fa3 does not run on this GPU \(compute capability 12.0\)"):
        build(profile(options={"attention-backend": "fa3"}), abilities=sm120)
    kimi = profile(target="moonshotai/Kimi-K2.6")
    assert any("set triton" in w.text for w in build(kimi, abilities=sm120).warnings)
    build(profile(options={"attention-backend": "fa3"}), abilities=HostAbilities(compute_capability=(9, 0)))


def test_what_the_host_itself_lists_wins_over_the_table():
    stock = HostAbilities(options=frozenset(option_table().at("0.5.14")) - {"enable-mfu-metrics"})
    with pytest.raises(RefusedError, match="on this host does not list it"):
        build(profile(options={"enable-mfu-metrics": True}), abilities=stock)
    odd = HostAbilities(options=stock.options | {"my-patch"})
    assert value_of(build(profile(options={"my-patch": 3}), abilities=odd).argv, "--my-patch") == "3"


def test_a_window_is_switched_off_by_the_plugin_where_the_plugin_switched_it_on():
    p = profile(algorithm=Algorithm.DFLASH, window="off")
    plugin = HostAbilities(plugin_features=frozenset({"windows"}))
    assert build(p, "0.5.13", plugin).env == {"DFLASH_SGLANG_WINDOWS": "off"}
    assert build(p, "0.5.13").env == {}
    assert build(p, "0.5.14", plugin).env == {}
    assert build(profile(algorithm=Algorithm.DFLASH), "0.5.13", plugin).env == {}


@pytest.mark.parametrize(
    ("window", "version", "features", "words"),
    [
        ("config", "0.5.11", (), "collapses beyond the window"),
        ("config", "0.5.13.post1", (), "the window flag does not repair it"),
        ("config", "0.5.13", ("windows",), None),
        ("config", "0.5.14", (), None),
        ("config", "0.5.23", (), None),
        ("off", "0.5.11", (), None),
        ("off", "0.5.14", (), "cannot be had here"),
        ("off", "0.5.11", ("windows",), None),
        ("off", "0.5.14", ("windows",), "cannot be had here"),
        (2048, "0.5.11", (), "one window on every draft layer"),
        (2048, "0.5.14", (), None),
    ],
)
def test_what_becomes_of_a_window_is_said(window, version, features, words):
    command = build(
        profile(algorithm=Algorithm.DFLASH, window=window),
        version,
        HostAbilities(plugin_features=frozenset(features)),
    )
    texts = " ".join(w.text for w in command.warnings)
    assert (words in texts) if words else not texts
    assert any("window-size" in word for word in command.argv) == isinstance(window, int)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"trust-remote-code": True}}, "trust-remote-code"),
        ({"options": {"host": "0.0.0.0"}}, "reached from the network"),
        ({"options": {"load-format": "pt"}}, "unpickles"),
        ({"options": {"load-format": "remote"}}, "fetches weights"),
        ({"options": {"enable-custom-logit-processor": True}}, "code that clients send"),
        ({"extra": ("--trust-remote-code",)}, "trust-remote-code"),
        ({"extra": ("--load-format=pt",)}, "unpickles"),
        ({"options": {"config": "/tmp/x.yaml"}}, "nothing here checks"),
    ],
)
def test_dangerous_options_are_marked(changes, words):
    dangerous = [w.text for w in build(profile(**changes)).warnings if w.dangerous]
    assert len(dangerous) == 1
    assert words in dangerous[0]


def test_switched_off_options_are_not_dangerous():
    assert build(profile(options={"trust-remote-code": False})).warnings == ()


def test_secrets_stay_references_and_never_stand_in_a_command():
    p = profile(env={"HF_TOKEN": SecretRef(scheme="env", target="HF_TOKEN"), "A": "x y"})
    command = build(p)
    assert command.env == {"A": "x y"}
    assert list(command.secret_env) == ["HF_TOKEN"]
    assert command.shell().startswith("A='x y' HF_TOKEN='<env:HF_TOKEN>' /opt/venv/bin/python -m")
    refused = compose(
        profile(extra=("--api-key", "s3cret", "--admin-api-key=s3cret")), "0.5.14", python=None, port=1
    )
    assert "s3cret" not in refused.shell()


_words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@settings(deadline=None, max_examples=60)
@given(target=_words, values=st.lists(_words, min_size=2, max_size=2), version=st.sampled_from(releases()))
def test_hostile_values_stay_one_word_each(target, values, version):
    p = profile(
        target=target, options={"served-model-name": values[0], "chat-template": values[1]}, env={"X": target}
    )
    command = compose(p, version, python="/v", port=1)
    quoted = shlex.split(command.shell())
    assert quoted == [f"X={target}", *command.argv]
    for value in values:
        assert value in command.argv or any(w.endswith(f"={value}") for w in command.argv)


@pytest.mark.parametrize("window", ["config", "off", 256])
@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_engine_takes_every_command_that_is_built_for_it(algorithm, window):
    from dflash_engine.server.args import parse_args

    engine = Profile(
        name="r", program=Program.REFERENCE, target="builtin:target", drafter="builtin:drafter", algorithm=algorithm,
        window=window, budget=16, topk=4, block_size=16,
        options={name: True if kind == "flag" else 64 for name, kind in ENGINE_OPTIONS.items()},
    )  # fmt: skip
    argv = build_argv(engine, "", python="/v", port=5).argv
    assert argv[:4] == ("/v/bin/python", "-m", "dflash_engine", "serve")
    args = parse_args(argv[4:])
    assert args.port == 5
    assert args.speculative_algorithm == (None if algorithm is Algorithm.NONE else algorithm.value)
    if algorithm is not Algorithm.NONE:
        assert (
            args.speculative_draft_window_mode
            == {"config": "declared", "off": "ignored", 256: "clamped"}[window]
        )


def test_the_reference_engine_speaks_the_same_spellings():
    def engine(**changes):
        base = {
            "name": "r",
            "program": Program.REFERENCE,
            "target": "builtin:target",
            "drafter": "builtin:drafter",
        }
        return build_argv(Profile(**{**base, **changes}), "", python="/v", port=5)

    argv = engine(algorithm=Algorithm.DDTREE, budget=16, topk=4, block_size=16).argv
    assert argv[:3] == ("/v/bin/python", "-m", "dflash_engine")
    assert value_of(argv, "--speculative-ddtree-budget") == "16"
    assert value_of(argv, "--speculative-ddtree-topk") == "4"
    assert value_of(argv, "--speculative-draft-window-mode") == "declared"
    off = engine(algorithm=Algorithm.DFLASH, window="off").argv
    assert value_of(off, "--speculative-draft-window-mode") == "ignored"
    clamped = engine(algorithm=Algorithm.DFLASH, window=256).argv
    assert value_of(clamped, "--speculative-draft-window-mode") == "clamped"
    assert value_of(clamped, "--speculative-draft-window-size") == "256"
    assert not any("speculative" in word for word in engine(drafter=None).argv)
    with pytest.raises(ConfigError, match=r"did you mean context-length\?"):
        engine(options={"context-lenght": 5})
    with pytest.raises(ConfigError, match="takes a whole number"):
        engine(options={"context-length": "x"})
