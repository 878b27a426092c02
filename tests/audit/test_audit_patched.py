"""Trees changed by hand: every change made on the real sources, at test time."""

from __future__ import annotations

import time

import pytest
from audit_cases import ENFORCED_LAYERS, FULL_LAYERS, WINDOW, attended, codes, config, finding, look

from dflash_backend.audit.inputs import MemoryTree
from dflash_backend.audit.report import Verdict
from rigs.sglang_sources import patched, stock

MODEL = "models/dflash.py"
BUILT = "            attn_type=AttentionType.ENCODER_ONLY,\n        )"
"""The end of RadixAttention's arguments in releases that know no windows."""
WINDOWED = """            sliding_window_size=_window(config, layer_id),
            attn_type=_kind(config, layer_id),
        )"""
RULE = """

def _slides(config, layer_id):
    kinds = getattr(config, "layer_types", None)
    return kinds is not None and kinds[layer_id] == "sliding_attention"


def _window(config, layer_id):
    return config.sliding_window - 1 if _slides(config, layer_id) else -1


def _kind(config, layer_id):
    return AttentionType.DECODER if _slides(config, layer_id) else AttentionType.ENCODER_ONLY


class DFlashAttention(nn.Module):"""
ATTENTION = "\n\nclass DFlashAttention(nn.Module):"
EXPOSE = "    def get_attention_sliding_window_size(self):\n        return self.config.sliding_window - 1\n\n"
FORWARD = "    @torch.no_grad()\n    def forward("


def right(*more: tuple[str, str, str]) -> MemoryTree:
    """0.5.11 made to honour the windows, as a careful engineer would do it."""
    return patched(
        "0.5.11",
        (MODEL, ATTENTION, RULE),
        (MODEL, BUILT, WINDOWED),
        (MODEL, FORWARD, EXPOSE + FORWARD),
        *more,
    )


def test_a_right_patch_is_enforced_and_named() -> None:
    report = look(release="0.5.11", source=right())
    assert report.verdict is Verdict.ENFORCED
    assert attended(report) == ENFORCED_LAYERS
    assert "hand-patched: 0.5.11 except for dflash.py" in finding(report, "source-patched")
    assert "runner-not-told" not in codes(report)
    assert report.exit_code == 0


def test_a_patch_that_the_runner_is_not_told_of_depends_on_the_backend() -> None:
    tree = patched("0.5.11", (MODEL, ATTENTION, RULE), (MODEL, BUILT, WINDOWED))
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.UNKNOWN
    assert "runner-not-told" in codes(report)
    assert any("attention backend" in text for text in report.missing)
    # fa3 goes by the layer alone.
    argv = ["--speculative-draft-attention-backend", "fa3"]
    assert look(release="0.5.11", source=tree, argv=argv).verdict is Verdict.ENFORCED


def test_helpers_that_nobody_calls_change_nothing() -> None:
    report = look(release="0.5.11", source=patched("0.5.11", (MODEL, ATTENTION, RULE)))
    assert report.verdict is Verdict.IGNORED
    assert attended(report) == FULL_LAYERS


def test_a_method_that_tells_the_runner_and_no_layer() -> None:
    report = look(release="0.5.11", source=patched("0.5.11", (MODEL, FORWARD, EXPOSE + FORWARD)))
    assert report.verdict is Verdict.IGNORED
    assert "window-exposed-not-built" in codes(report)


def test_a_runner_that_does_not_ask_the_model() -> None:
    ask = 'if hasattr(self.model, "get_attention_sliding_window_size"):'
    report = look(
        release="0.5.11", source=right(("model_executor/model_runner.py", ask, f"if False and {ask[3:]}"))
    )
    assert "runner-not-told" in codes(report)
    assert report.verdict is Verdict.UNKNOWN


def test_off_by_one() -> None:
    tree = right((MODEL, "config.sliding_window - 1 if", "config.sliding_window if"))
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.CLAMPED
    assert attended(report)[0] == (WINDOW + 1, True)
    assert f"{WINDOW + 1} instead of {WINDOW}" in finding(report, "window-differs")


def test_sliding_on_all_layers() -> None:
    tree = right((MODEL, 'kinds[layer_id] == "sliding_attention"', "True"))
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.CLAMPED
    assert attended(report) == [(WINDOW, True)] * 6
    assert "layer 5" in finding(report, "full-layers-clamped")
    assert "layer 5" in finding(report, "causality-differs")


def test_causality_dropped_and_window_kept_are_two_things() -> None:
    report = look(
        release="0.5.11",
        source=right((MODEL, "attn_type=_kind(config, layer_id)", "attn_type=AttentionType.ENCODER_ONLY")),
    )
    assert report.verdict is Verdict.CLAMPED
    assert attended(report) == [(WINDOW, False)] * 5 + [(None, False)]
    assert "causality-differs" in codes(report)
    assert "window-not-applied" not in codes(report)


def test_window_dropped_and_causality_kept() -> None:
    call = "get_dflash_attention_sliding_window_size(config)\n        assert sliding_window_size is not None"
    tree = patched("0.5.14", (MODEL, f"sliding_window_size = {call}", "sliding_window_size = -1"))
    report = look(release="0.5.14", source=tree)
    assert report.verdict is Verdict.IGNORED
    assert attended(report) == [(None, True)] * 5 + [(None, False)]
    assert "window-not-applied" in codes(report)
    assert "causality-differs" not in codes(report)
    assert [remedy.kind for remedy in report.remedies] == ["upgrade"]
    assert "sglang==0.5.14" in report.remedies[0].command


@pytest.mark.parametrize(
    "dead",
    [
        'SLIDING = "sliding_attention layer_types sliding_window get_attention_sliding_window_size"\n',
        "if False:\n    def get_attention_sliding_window_size(self): return 2047\n",
        "def unused(layer, config):\n    layer.attn.sliding_window_size = config.sliding_window - 1\n",
        "# sliding_window_size=config.sliding_window - 1 for layer_types\n",
        "class Other(DFlashAttention):\n    sliding_window_size = 2047\n",
    ],
    ids=["words", "if-false", "unused-function", "comment", "unused-class"],
)
def test_dead_code_that_contains_the_words(dead: str) -> None:
    report = look(release="0.5.11", source=patched("0.5.11", (MODEL, "", dead)))
    assert report.verdict is Verdict.IGNORED
    assert attended(report) == FULL_LAYERS


def test_windows_set_after_the_attention_was_built() -> None:
    late = """        self.attn.sliding_window_size = _window(config, layer_id)
        self.attn.attn_type = _kind(config, layer_id)

    def forward("""
    tree = patched(
        "0.5.11",
        (MODEL, ATTENTION, RULE),
        (MODEL, "    def forward(", late),
        (MODEL, FORWARD, EXPOSE + FORWARD),
    )
    assert attended(look(release="0.5.11", source=tree)) == ENFORCED_LAYERS


def test_windows_set_by_the_model_over_its_layers() -> None:
    loop = """        self.norm = RMSNorm(hidden_size, eps=rms_norm_eps)
        for i, layer in enumerate(self.layers):
            setattr(layer.self_attn.attn, "sliding_window_size", _window(config, i))
            layer.self_attn.attn.attn_type = _kind(config, i)
"""
    tree = patched(
        "0.5.11",
        (MODEL, ATTENTION, RULE),
        (MODEL, "        self.norm = RMSNorm(hidden_size, eps=rms_norm_eps)\n", loop),
        (MODEL, FORWARD, EXPOSE + FORWARD),
    )
    assert attended(look(release="0.5.11", source=tree)) == ENFORCED_LAYERS


@pytest.mark.parametrize("place", ["load_weights", "the worker"])
def test_windows_set_where_the_constructor_does_not_go_are_unknown(place: str) -> None:
    change = "for one in self{}.layers:\n            one.self_attn.attn.sliding_window_size = 2047\n"
    if place == "load_weights":
        begin = "    def load_weights(self, weights: Iterable[Tuple[str, torch.Tensor]]):\n"
        edit = (MODEL, begin, f"{begin}        {change.format('')}")
    else:
        begin = "        self._mask_token = draft_config.mask_token\n"
        edit = ("speculative/dflash_worker.py", begin, f"{begin}        {change.format('.draft_model')}")
    report = look(release="0.5.11", source=patched("0.5.11", edit))
    assert report.verdict is Verdict.UNKNOWN
    assert "changed after it was built" in finding(report, "source-not-followed")


PATCHED_INIT = """
_original = DFlashAttention.__init__

def _with_window(self, config, layer_id, *args, **kwargs):
    _original(self, config, layer_id, *args, **kwargs)
    if config.layer_types[layer_id] == "sliding_attention":
        self.attn.sliding_window_size = config.sliding_window - 1
        self.attn.attn_type = AttentionType.DECODER

DFlashAttention.__init__ = _with_window
DFlashDraftModel.get_attention_sliding_window_size = lambda self: self.config.sliding_window - 1
"""
DECORATED = """
def _windowed(init):
    def wrapped(self, config, layer_id, **kwargs):
        init(self, config, layer_id, **kwargs)
        if config.layer_types[layer_id] == "sliding_attention":
            self.attn.sliding_window_size = config.sliding_window - 1
            self.attn.attn_type = AttentionType.DECODER
    return wrapped


class DFlashAttention(nn.Module):
    @_windowed"""


def test_a_monkeypatch_at_the_end_of_the_module() -> None:
    report = look(release="0.5.11", source=patched("0.5.11", (MODEL, "", PATCHED_INIT)))
    assert (report.verdict, attended(report)) == (Verdict.ENFORCED, ENFORCED_LAYERS)


def test_a_decorated_constructor() -> None:
    tree = patched("0.5.11", (MODEL, ATTENTION, DECORATED), (MODEL, FORWARD, EXPOSE + FORWARD))
    assert attended(look(release="0.5.11", source=tree)) == ENFORCED_LAYERS


def test_a_subclass_that_is_served_and_calls_super_with_arguments() -> None:
    text = """
class Windowed(DFlashDraftModel):
    def __init__(self, config, quant_config=None, prefix=""):
        super(Windowed, self).__init__(config, quant_config, prefix)
        for i, layer in enumerate(self.layers):
            if config.layer_types[i] == "sliding_attention":
                layer.self_attn.attn.sliding_window_size = config.sliding_window - 1
                layer.self_attn.attn.attn_type = AttentionType.DECODER

    def get_attention_sliding_window_size(self):
        return self.config.sliding_window - 1

Windowed.__name__ = "DFlashDraftModel"
EntryClass = [Windowed]
"""
    tree = patched("0.5.11", (MODEL, "", text))
    report = look(draft=config(architectures=["Windowed"]), release="0.5.11", source=tree)
    assert attended(report) == ENFORCED_LAYERS


def test_try_and_except_that_swallow_the_window() -> None:
    swallowed = """def _window(config, layer_id):
    try:
        return config.sliding_windows[layer_id] - 1 if _slides(config, layer_id) else -1
    except Exception:
        return -1
"""
    rule = "    return config.sliding_window - 1 if _slides(config, layer_id) else -1\n"
    tree = right((MODEL, f"def _window(config, layer_id):\n{rule}", swallowed))
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.IGNORED
    assert attended(report) == [(None, True)] * 5 + [(None, False)]


def test_a_window_behind_an_environment_variable_is_unknown_and_says_on_what() -> None:
    guarded = 'config.sliding_window - 1 if __import__("os").environ.get("SWA") and _slides'
    tree = right((MODEL, "config.sliding_window - 1 if _slides", guarded))
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.UNKNOWN
    assert [row.attended_known for row in report.layers] == [False] * 5 + [True]
    assert any("SWA" in text for text in report.missing)


def test_a_window_behind_an_import_that_may_fail_is_unknown() -> None:
    guarded = f"try:\n    import my_swa\n    ON = True\nexcept ImportError:\n    ON = False\n{RULE}"
    tree = patched(
        "0.5.11",
        (MODEL, ATTENTION, guarded),
        (
            MODEL,
            BUILT,
            WINDOWED.replace("_window(config, layer_id)", "_window(config, layer_id) if ON else -1"),
        ),
        (MODEL, FORWARD, EXPOSE + FORWARD),
    )
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.UNKNOWN
    assert any("my_swa" in text for text in report.missing)


def test_a_window_out_of_a_module_that_cannot_be_seen_is_unknown() -> None:
    tree = patched(
        "0.5.11",
        (MODEL, "import logging\n", "import logging\nfrom house.swa import window_for\n"),
        (MODEL, BUILT, WINDOWED.replace("_window(config", "window_for(config").replace(
            "_kind(config, layer_id)", "AttentionType.DECODER")),
        (MODEL, FORWARD, EXPOSE + FORWARD),
    )  # fmt: skip
    report = look(release="0.5.11", source=tree)
    assert report.verdict is Verdict.UNKNOWN
    assert all(row.causal is True for row in report.layers)
    assert not any(row.attended_known for row in report.layers)


def test_an_attention_class_that_forgets_the_window() -> None:
    radix = ("layers/radix_attention.py", "self.sliding_window_size = sliding_window_size or -1",
             "self.sliding_window_size = -1")  # fmt: skip
    report = look(release="0.5.14", source=patched("0.5.14", radix))
    assert report.verdict is Verdict.IGNORED


def test_a_backend_that_never_reads_the_window() -> None:
    text = stock("0.5.14").files["sglang/srt/layers/attention/triton_backend.py"].decode()
    tree = MemoryTree(
        "changed",
        {
            **stock("0.5.14").files,
            "sglang/srt/layers/attention/triton_backend.py": text.replace(
                "layer.sliding_window_size", "self.nothing"
            ).encode(),
        },
    )
    report = look(release="0.5.14", source=tree, argv=["--speculative-draft-attention-backend", "triton"])
    assert report.verdict is Verdict.IGNORED
    assert "backend-ignores-window" in codes(report)


def test_a_renamed_flag_is_followed_and_an_unused_one_is_told() -> None:
    worker = "speculative/dflash_worker.py"
    name = "server_args.speculative_dflash_draft_window_size"
    tree = patched("0.5.11", (worker, name, "server_args.my_window"), (worker, name, "server_args.my_window"))
    info = {"model_path": "m", "version": "0.5.11", "my_window": WINDOW}
    report = look(release=None, source=tree, server_info=info)
    assert report.cached_window == WINDOW
    unused = patched(
        "0.5.11", (worker, f"int({name})", "None"), (worker, f"if {name} is not None", "if False")
    )
    report = look(release="0.5.11", source=unused, flag=WINDOW)
    assert report.cached_window is None
    assert report.compact_cache is False
    assert "flag-not-used" in codes(report)
    assert report.verdict is Verdict.IGNORED


HOSTILE = {
    "endless loop": "while True:\n    pass\n",
    "endless recursion": "def f(x):\n    return f(x + 1)\nf(1)\n",
    "mutual imports": "from sglang.srt.models.dflash import *\nfrom .dflash import nothing\n",
    "doubling": "x = [1]\nfor i in range(4000):\n    x = x + x\n",
    "doubling text": "x = 'ab'\nfor i in range(4000):\n    x = x + x\n",
    "growing numbers": "x = 2\nfor i in range(4000):\n    x = x * x\n",
    "power": "x = 9 ** 9 ** 9 ** 9\n",
    "format": "x = '%99999999999d' % 1\ny = f'{1:99999999999}'\n",
    "shared lists": "x = [1]\nfor i in range(60):\n    x = [x, x]\ny = x == [x]\nz = str(x)\nw = f'{x}'\n",
    "shared tuples": "x = (1,)\nfor i in range(60):\n    x = (x, x)\nd = {x: 1}\ns = {x}\n",
    "itself": "x = []\nx.append(x)\ny = x == x\nz = repr(x)\nd = {}\nd['d'] = d\nw = d == {'d': d}\n",
    "many conditions": "import house\n" + "".join(f"if house.c{i}:\n    a{i} = 1\n" for i in range(40)),
    "deep calls": "f0 = lambda: 1\n"
    + "".join(f"f{i + 1} = lambda: f{i}()\n" for i in range(500))
    + "f500()\n",
    "long sum": "x = " + " + ".join(["1"] * 5000) + "\n",
    "parentheses": "x = " + "(" * 5000 + "1" + ")" * 5000 + "\n",
    "minus signs": "x = " + "-" * 20000 + "1\n",
    "attributes": "x = house" + ".a" * 5000 + "\n",
    "syntax error": "def broken(:\n",
    "null byte": "x = 1\0\n",
    "match": "match 1:\n    case 1:\n        pass\n",
    "generators": "x = list(range(4096))\ny = [a for a in x for b in x for c in x]\n",
    "raises": "raise SystemExit('no')\n",
    "exits": "import sys\nsys.exit(1)\nimport os\nos.system('touch /tmp/audit-was-run')\n",
    "metaclass": "class M(type):\n    def __call__(cls, *a): return 1\nclass X(metaclass=M): pass\nX()\n",
    "setattr": "class X:\n    def __setattr__(self, n, v): raise ValueError\nX().a = 1\n",
    "property": "class X:\n    @property\n    def a(self): return self.a\nX().a\n",
    "return outside": "if house:\n    return 1\n",
    "break outside": "break\n",
    "continue in a function": "def f():\n    continue\nf()\n",
    "return in a class": "class X:\n    return 1\n",
    "yield outside": "x = yield 1\n",
    "star outside": "x = *[1],\n*y, = x\nprint(*y, **{'a': 1})\n",
    "walrus": "(y := 5)\nx = [z := 1, z]\n",
    "async": "async def f():\n    await g()\nf()\n",
    "del of everything": "del logging\n",
    "odd targets": "[a, (b, *c)] = 1, (2, 3, 4)\nd = e = {}\nd[[]] = 1\n",
    "wrong calls": "isinstance()\nint(1, 2, 3)\ngetattr()\nrange('a')\nlen()\n",
    "escapes": "x = '\\x1b]0;owned\\x07'\nraise ValueError(x)\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_sources_are_left_in_time_and_never_guessed(text: str) -> None:
    tree = patched("0.5.14", (MODEL, "import logging\n", f"import logging\n{text}"))
    begin = time.monotonic()
    report = look(release="0.5.14", source=tree)
    assert time.monotonic() - begin < 60
    assert report.verdict in (Verdict.UNKNOWN, Verdict.ENFORCED)
    if report.verdict is Verdict.ENFORCED:
        assert attended(report) == ENFORCED_LAYERS
    assert "\x1b" not in str(report.to_json())


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe\x00x", b"# coding: latin-1\n\xe9 = 1\n" * 3, b"\x00" * 4000, b"x = 1\n" * 2_000_000, b""],
    ids=["utf-16", "latin-1", "nulls", "12 MB", "empty"],
)
def test_files_that_are_no_source(data: bytes) -> None:
    files = {**stock("0.5.14").files, f"sglang/srt/{MODEL}": data}
    report = look(release="0.5.14", source=MemoryTree("odd", files))
    assert report.verdict is Verdict.UNKNOWN
    assert report.missing
    assert report.exit_code == 1


def test_a_tree_without_a_draft_model_is_unknown() -> None:
    report = look(
        release="0.5.11", source=MemoryTree("empty", {"sglang/_version.py": b"__version__ = '0.5.11'"})
    )
    assert report.verdict is Verdict.UNKNOWN
    assert any("models/dflash.py" in text for text in report.missing)
