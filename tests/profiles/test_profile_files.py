# ruff: noqa: E501  (one case a line reads better)
"""Profiles: strict files, extension, what each algorithm keeps, digests, secrets, new files."""

import dataclasses
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_backend.core.errors import ConfigError, UsageError
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.profile import Algorithm, Profile, Program, SecretRef
from dflash_backend.profiles.compare import differences
from dflash_backend.profiles.file import parse_env, spell_env
from dflash_backend.profiles.lint import lint
from dflash_backend.profiles.resolve import digest
from dflash_backend.profiles.secrets import resolve_env
from dflash_backend.profiles.serialise import profile_to_toml
from dflash_backend.profiles.store import ProfileStore, shipped_dir
from dflash_backend.profiles.template import new_profile

BASE = """\
target = "Qwen/Qwen3-8B"
drafter = "z-lab/Qwen3-8B-DFlash-b16"
algorithm = "DDTREE"
budget = 16
topk = 8
window = 2048
block_size = 16
extra = ["--log-requests"]
[options]
tp-size = 2
attention-backend = "triton"
enable-cache-report = true
[env]
HF_HOME = "/data"
HF_TOKEN = "env:HF_TOKEN"
"""


@pytest.fixture
def store(tmp_path):
    user = tmp_path / "user"
    user.mkdir()
    return ProfileStore([user])


def add(store, name, text, layer=0):
    path = store.folders[layer] / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def said(store, name):
    with pytest.raises(ConfigError) as caught:
        store.load(name)
    assert caught.value.exit_code == 2
    return "\n".join(caught.value.lines())


def test_a_file_becomes_a_profile(store):
    path = add(store, "base", BASE)
    profile = store.load("base")
    assert (profile.name, profile.program, profile.algorithm) == ("base", Program.SGLANG, Algorithm.DDTREE)
    assert (profile.budget, profile.topk, profile.window, profile.block_size) == (16, 8, 2048, 16)
    assert profile.env == {"HF_HOME": "/data", "HF_TOKEN": SecretRef(scheme="env", target="HF_TOKEN")}
    assert profile.origin == str(path)
    assert not profile.shipped
    assert len(profile.digest) == 64


def test_extends_replaces_settings_and_merges_tables(store):
    add(store, "base", BASE)
    add(
        store,
        "child",
        'extends = "base"\nbudget = 32\nextra = []\n[options]\ntp-size = 4\nenable-cache-report = false\n'
        '[env]\nHF_TOKEN = false\nOMP_NUM_THREADS = "2"\n',
    )
    child = store.load("child")
    assert (child.budget, child.topk, child.extra) == (32, 8, ())
    assert child.options == {"tp-size": 4, "attention-backend": "triton", "enable-cache-report": False}
    assert child.env == {"HF_HOME": "/data", "OMP_NUM_THREADS": "2"}


def test_an_algorithm_drops_what_it_has_no_use_for(store):
    add(store, "base", BASE)
    add(store, "ar", 'extends = "base"\nalgorithm = "NONE"\n')
    add(store, "chain", 'extends = "base"\nalgorithm = "DFLASH"\n')
    ar, chain = store.load("ar"), store.load("chain")
    assert (ar.drafter, ar.budget, ar.topk, ar.block_size, ar.window) == (None, None, None, None, "config")
    assert (chain.budget, chain.topk, chain.window) == (None, None, 2048)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "names no 'target' model"),
        ('target = "t"\nalgorithm = "DFLASH"\n', 2, "algorithm DFLASH needs a 'drafter'"),
        ('target = "t"\nalgorithm = "DFLSH"\n', 2, "(did you mean 'DFLASH'?)"),
        ('target = "t"\nalgorithm = "dflash"\n', 2, "(did you mean 'DFLASH'?)"),
        ('target = "t"\nalgoritm = "NONE"\n', 2, "unknown key 'algoritm' (did you mean 'algorithm'?)"),
        ('target = "t"\nwindow = "on"\n', 2, '"config", "off"'),
        ('target = "t"\nwindow = 0\n', 2, "a whole number from 1"),
        ('target = "t"\nwindow = -5\n', 2, "'window' must be"),
        ('target = "t"\nwindow = 2048.5\n', 2, "'window' must be"),
        ('target = "t"\nbudget = "8"\n', 2, "'budget' must be a whole number"),
        ('target = "t"\nbudget = 0\n', 2, "'budget' must be"),
        ('target = "t"\nalgorithm = "NONE"\nbudget = 8\n', 3, "belongs to algorithm DDTREE"),
        ('target = "t"\nbudget = 8\ntopk = 9\n', 3, "over the budget"),
        ('target = "t"\n[options]\nmem_fraction_static = 0.8\n', 3, "is spelled 'mem-fraction-static' here"),
        ('target = "t"\n[options]\n"--tp-size" = 8\n', 3, "is spelled 'tp-size' here"),
        ('target = "t"\n[options]\ntp-size = [8]\n', 3, "'options.tp-size' must be"),
        ('target = "t"\n[options]\ntp-size = { a = 1 }\n', 3, "'options.tp-size' must be"),
        ('target = "t"\nready_timeout_s = 0\n', 2, "'ready_timeout_s' must be a number from 1"),
        ('target = "t"\nready_timeout_s = inf\n', 2, "'ready_timeout_s' must be"),
        ('target = "--model"\n', 1, "neither a model's name nor a path"),
        ('target = "t"\nextra = "--a"\n', 2, "must be a list"),
        ('target = "t"\n[env]\nHF_TOKEN = "hf_abcdefghijklmnopqrstuvwx"\n', 3, 'refer to it as "env:HF_TOKEN"'),
        ('target = "t"\n[env]\nMY_SETTING = "hf_abcdefghijklmnopqrstuvwx"\n', 3, "looks like a secret"),
        ('target = "t"\n[env]\nOPENAI_API_KEY = "plain"\n', 3, "looks like a secret"),
        ('target = "t"\n[env]\n"A-B" = "1"\n', 3, "cannot be the name of an environment variable"),
        ('target = "t"\n[env]\nA = true\n', 3, "or false to take it away"),
        ('target = "t"\n[env]\nA = "env:not a name"\n', 3, "cannot be the name"),
        ('target = "t"\n[env]\nA = "file:secret.txt"\n', 3, "must be a path from the root"),
        ('target = "t"\n[env]\nA = "command:"\n', 3, "names no program"),
        ('target = "t"\n[env]\nA = "command:pass \'x"\n', 3, "unbalanced quotes"),
        ('target = "t"\nextra = ["--api-key",\n "sk-abcdefghijklmnop1234"]\n', 3, "looks like a secret"),
        ('extends = "bse"\n', 1, "there is no profile 'bse' to extend"),
        ('extends = "../x"\n', 1, "cannot be the name of a profile"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_file_line_and_remedy(store, text, line, words):
    add(store, "base", BASE)
    path = add(store, "bad", text)
    message = said(store, "bad")
    assert f"{path}:{line}: " in message or (line is None and f"{path}: " in message), message
    assert words in message


def test_secret_values_never_reach_a_message(store):
    add(store, "bad", 'target = "t"\n[env]\nHF_TOKEN = "hf_abcdefghijklmnopqrstuvwx"\n')
    assert "hf_abc" not in said(store, "bad")


def test_harmless_values_under_secret_looking_names_are_kept(store):
    add(
        store,
        "p",
        'target = "t"\n[env]\nMAX_TOKENS = "8192"\nTOKENIZERS_PARALLELISM = "false"\nUSE_KEY = "off"\n',
    )
    assert store.load("p").env["MAX_TOKENS"] == "8192"


def test_circles_and_long_chains(store):
    add(store, "a", 'extends = "b"\n')
    add(store, "b", 'extends = "c"\n')
    add(store, "c", 'extends = "a"\n')
    assert "in a circle: a → b → c → a" in said(store, "a")
    add(store, "self", 'extends = "self"\n')
    assert "in a circle: self → self" in said(store, "self")
    for number in range(20):
        add(store, f"n{number}", f'extends = "n{number + 1}"\n')
    add(store, "n20", 'target = "t"\n')
    assert "more than 16 profiles" in said(store, "n0")


def test_your_profile_hides_a_shipped_one_and_can_extend_it(store):
    add(store, "ref-ar", 'extends = "ref-ar"\n[options]\ncontext-length = 4096\n')
    profile = store.load("ref-ar")
    assert profile.options["context-length"] == 4096
    assert profile.target == "builtin:target"
    entry = next(e for e in store.entries() if e.name == "ref-ar")
    assert not entry.shipped
    assert entry.shadows == (shipped_dir() / "ref-ar.toml",)
    assert store.load("ref-chain").options["context-length"] == 4096


def test_unknown_names_get_the_nearest(store):
    with pytest.raises(UsageError) as caught:
        store.load("kimi-k26-chian")
    assert caught.value.next_step == "did you mean 'kimi-k26-chain'?"
    for hostile in ("", "../../etc/passwd", "a/b", "\x1b[31mx", "x" * 300):
        with pytest.raises(UsageError) as caught:
            store.load(hostile)
        assert "\x1b" not in str(caught.value)


def test_the_store_of_an_inventory_looks_beside_it_then_in_its_folders(tmp_path):
    inventory = Inventory(
        path=str(tmp_path / "c.toml"), profile_dirs=(str(tmp_path / "more"), str(tmp_path / "gone"))
    )
    store = ProfileStore.of(inventory)
    add(store, "one", 'target = "first"\n', layer=0)
    add(store, "one", 'target = "second"\n', layer=1)
    add(store, "two", 'target = "t"\n', layer=1)
    assert store.load("one").target == "first"
    assert store.load("two").target == "t"
    assert store.missing_folders() == (tmp_path / "gone",)
    assert "two" in store.names()


def test_a_file_anywhere_can_be_loaded_and_may_extend_the_store(store, tmp_path):
    path = tmp_path / "loose.toml"
    path.write_text('extends = "ref-chain"\nwindow = "off"\n')
    assert store.load_path(path).window == "off"


def test_a_profile_that_others_can_write_is_not_trusted(store):
    add(store, "open", 'target = "t"\n').chmod(0o666)
    assert "every user of this machine can change it" in said(store, "open")


def test_shipped_profiles_are_sound():
    store = ProfileStore([])
    names = store.names()
    assert {
        "kimi-k26-ar",
        "kimi-k26-chain",
        "kimi-k26-ddtree8",
        "qwen3-8b-ar",
        "ref-ar",
        "sglang-cpu-ar",
    } <= set(names)
    for name in names:
        profile = store.load(name)
        report = lint(profile, store.chain_of(profile))
        assert report.problems == (), name
        assert profile.shipped
        assert profile.description
        launchable = [v for v in report.verdicts if not v.refusals]
        needs_patch = profile.algorithm is Algorithm.DDTREE and profile.program is Program.SGLANG
        assert bool(launchable) != needs_patch, name


def test_lint_names_the_line_of_an_option_that_no_release_knows(store):
    add(store, "base", 'target = "t"\n[options]\n\nmem-fractoin-static = 0.8\nport = 3\n')
    add(store, "child", 'extends = "base"\nextra = ["--tp-sise", "2"]\n')
    profile = store.load("child")
    problems = [str(p) for p in lint(profile, store.chain_of(profile)).problems]
    base, child = store.folders[0] / "base.toml", store.folders[0] / "child.toml"
    assert any(p.startswith(f"{base}:4: ") and "did you mean mem-fraction-static?" in p for p in problems)
    assert any(p.startswith(f"{base}:5: ") and "set it by the server's port" in p for p in problems)
    assert any(p.startswith(f"{child}:2: ") and "did you mean tp-size?" in p for p in problems)


def test_lint_tells_releases_apart(store):
    add(store, "p", 'target = "t"\n[options]\nspeculative-draft-sink-size = 4\n')
    profile = store.load("p")
    report = lint(profile, store.chain_of(profile))
    assert report.problems == ()
    assert [v.release for v in report.verdicts if not v.refusals] == ["0.5.21", "0.5.22", "0.5.23"]


def test_serialised_profiles_load_to_the_same_digest_and_hold_no_secret(store, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwx")
    add(store, "base", BASE)
    for name in ("base", "kimi-k26-ddtree8", "ref-window-clamped", "ref-ar", "sglang-cpu-chain"):
        profile = store.load(name)
        text = profile_to_toml(profile)
        assert "hf_abc" not in text
        add(store, "again", text)
        again = store.load("again")
        assert again.digest == profile.digest
        ignored = {"name", "origin", "shipped"}
        assert {k: v for k, v in dataclasses.asdict(again).items() if k not in ignored} == {
            k: v for k, v in dataclasses.asdict(profile).items() if k not in ignored
        }


_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@settings(deadline=None)
@given(
    options=st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True),
        st.booleans()
        | st.integers(-(2**62), 2**62)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _text,
        max_size=5,
    ),
    env=st.dictionaries(st.from_regex(r"X_[A-Z]{1,5}", fullmatch=True), _text, max_size=3),
)
def test_any_options_and_environment_survive_the_round_trip(tmp_path_factory, options, env):
    folder = tmp_path_factory.mktemp("p")
    profile = Profile(name="p", target="t", options=options, env={k: f"v{v}" for k, v in env.items()})
    (folder / "p.toml").write_text(profile_to_toml(profile), encoding="utf-8", newline="")
    again = ProfileStore([folder]).load("p")
    assert again.options == dict(profile.options)
    assert {k: type(v) for k, v in again.options.items()} == {k: type(v) for k, v in options.items()}
    assert again.env == dict(profile.env)
    assert again.digest == digest(profile)


@given(_text)
def test_environment_texts_are_spelled_so_that_they_read_back(text):
    for content in (text, f"env:{text}", f"file:/{text}", f"text:{text}"):
        assert parse_env(spell_env(content)) == content


def test_digests_tell_launches_apart_and_ignore_names(store):
    add(store, "a", 'target = "t"\ndescription = "x"\n[options]\ntp-size = 1\npage-size = 1\n')
    add(
        store,
        "b",
        'target = "t"\ndescription = "y"\nready_timeout_s = 5\n[options]\npage-size = 1\ntp-size = 1\n',
    )
    add(store, "c", 'target = "t"\n[options]\ntp-size = 2\npage-size = 1\n')
    a, b, c = (store.load(n).digest for n in "abc")
    assert a == b != c


def test_differences_are_listed_in_the_order_of_a_file(store):
    found = differences(store.load("kimi-k26-chain"), store.load("kimi-k26-ddtree8"))
    assert [(d.name, d.before, d.after) for d in found] == [
        ("algorithm", "DFLASH", "DDTREE"),
        ("budget", None, "8"),
        ("topk", None, "8"),
        ("options.page-size", None, "1"),
    ]
    assert differences(store.load("ref-ar"), store.load("ref-ar")) == ()


def test_secrets_are_read_at_launch(store, tmp_path, monkeypatch):
    secret = tmp_path / "token"
    secret.write_text("from-file\n")
    secret.chmod(0o600)
    monkeypatch.setenv("MY_TOKEN", "from-env")
    add(
        store,
        "p",
        f'target = "t"\n[env]\nA_KEY = "env:MY_TOKEN"\nB_KEY = "file:{secret}"\n'
        'C_KEY = "command:printf from-%s command"\nPLAIN = "1"\n',
    )
    plain, secrets = resolve_env(store.load("p"))
    assert plain == {"PLAIN": "1"}
    assert secrets == {"A_KEY": "from-env", "B_KEY": "from-file", "C_KEY": "from-command"}


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("env:NOT_SET_ANYWHERE", "the variable is not set"),
        ("file:/no/such/file", "No such file"),
        ("file:/dev", "not a regular file"),
        ("command:/no/such/program", "there is no program /no/such/program"),
        ("command:false", "ended with status 1"),
        ("command:true", "it is empty"),
        ("command:printf 'a\\nb'", "not one line"),
        ("command:printf '\\xff'", "not UTF-8"),
    ],
)
def test_a_secret_that_cannot_be_had_is_a_plain_error(store, reference, words):
    add(store, "p", f"target = \"t\"\n[env]\nA_KEY = '''{reference}'''\n")
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_env(store.load("p"))
    assert "env.A_KEY" in caught.value.where
    assert caught.value.next_step


def test_a_secret_file_that_others_can_read_is_refused(store, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("very-secret")
    secret.chmod(0o644)
    add(store, "p", f'target = "t"\n[env]\nA_KEY = "file:{secret}"\n')
    with pytest.raises(ConfigError, match="can read it") as caught:
        resolve_env(store.load("p"))
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("base", [None, "kimi-k26-ddtree8", "ref-ar"])
def test_a_new_profile_is_valid_private_and_never_overwrites(tmp_path, base):
    store = ProfileStore([tmp_path / "not-there-yet" / "profiles"])
    path = new_profile(store, "mine", base=base)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    mine = store.load("mine")
    if base is not None:
        assert mine.digest == store.load(base).digest
    before = path.read_text()
    with pytest.raises(ConfigError, match="already a profile"):
        new_profile(store, "mine", base=base)
    assert path.read_text() == before
    assert os.listdir(path.parent) == ["mine.toml"]


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "x" * 65])
def test_bad_names_of_new_profiles(store, name):
    with pytest.raises(UsageError):
        new_profile(store, name)
    with pytest.raises(UsageError, match="there is no profile"):
        new_profile(store, "ok", base="nonesuch")
