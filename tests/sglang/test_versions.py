"""The table of releases: versions are read, abilities match what each release was seen to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import ConfigError, RefusedError
from dflash_backend.sglang.versions import parse_version, release, releases


def test_the_table_covers_every_release_from_the_first_with_dflash():
    assert releases()[0] == "0.5.11"
    assert releases()[-1] == "0.5.23"
    assert "0.5.12.post1" in releases()
    assert list(releases()) == sorted(releases(), key=lambda r: parse_version(r).order)


@pytest.mark.parametrize(
    ("text", "name", "note"),
    [
        ("0.5.11", "0.5.11", ""),
        ("v0.5.14", "0.5.14", ""),
        ("0.5.12.post1", "0.5.12.post1", ""),
        ("0.5.12.post4", "0.5.12.post1", "treated as 0.5.12.post1"),
        ("0.5.11.post1", "0.5.11", "treated as 0.5.11"),
        ("0.5.14.dev37+g1a2b3c4", "0.5.14", "development build"),
        ("0.5.13rc1", "0.5.13", "development build"),
        ("0.5.15.post1+cu130", "0.5.15.post1", "local build"),
        ("0.5.24", "0.5.23", "newer than the newest known"),
        ("1.0", "0.5.23", "newer than the newest known"),
    ],
)
def test_versions_are_mapped_to_a_known_release(text, name, note):
    found = release(text)
    assert found.name == name
    assert note in " ".join(found.notes)
    assert bool(found.notes) == bool(note)


@pytest.mark.parametrize("text", ["0.5.10.post1", "0.5.9", "0.4.10", "0.3"])
def test_older_releases_are_refused_with_the_reason(text):
    with pytest.raises(RefusedError, match=r"too old: DFLASH came with 0\.5\.11") as caught:
        release(text)
    assert caught.value.next_step


@pytest.mark.parametrize("text", ["", "latest", "0", "0.5.x", "0.5.14; rm -rf /", "\x1b[31m0.5.14\x1b[0m!"])
def test_what_is_no_version_is_said_so(text):
    with pytest.raises(ConfigError) as caught:
        release(text)
    assert "\x1b" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_either_a_version_or_a_plain_error(text):
    try:
        numbers = parse_version(text).release
    except ConfigError:
        numbers = (0,)
    assert len(numbers) in (1, 2, 3, 4)


def test_abilities_change_where_the_releases_did():
    def first(ability):
        return next(r for r in releases() if ability(release(r)))

    assert first(lambda r: r.honours_layer_windows) == "0.5.14"
    assert first(lambda r: r.registers_algorithms) == "0.5.12"
    assert first(lambda r: r.spec_v2) == "0.5.14"
    assert first(lambda r: r.dflash_on_cpu_refused) == "0.5.16"
    assert first(lambda r: r.dflash_with_dp_attention) == "0.5.23"
    assert first(lambda r: r.ready_endpoint) == "0.5.20"
    assert first(lambda r: not r.get_load_endpoint) == "0.5.21"
    assert first(lambda r: "spec_accepted_drafts" not in r.meta_accepted) == "0.5.21"
    assert release("0.5.11").meta_accepted == ("spec_accepted_drafts",)
    assert release("0.5.14").meta_accepted == ("spec_num_correct_drafts", "spec_accepted_drafts")
    assert "trtllm_mha" in release("0.5.17").draft_backends
    assert "trtllm_mha" not in release("0.5.16").draft_backends


def test_the_window_option_of_a_release_is_one_that_it_knows():
    for name in releases():
        facts = release(name)
        assert facts.knows(facts.window_option)
    assert release("0.5.11").window_option == "speculative-dflash-draft-window-size"
    assert not release("0.5.20").knows("speculative-dflash-draft-window-size")
    assert release("0.5.19").knows("speculative-dflash-draft-window-size")
