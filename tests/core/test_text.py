"""Remote text is hostile: what passes the boundary can do nothing to a terminal, and holds no secret."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.text import (
    MAX_LINE,
    REDACTED,
    LineDecoder,
    is_secret_name,
    redact,
    redact_mapping,
    sanitise,
)

HOSTILE = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            [
                "\x1b]52;c;ZXZpbA==\x07",
                "\x1b]0;title\x1b\\",
                "\x1b[2J",
                "\x9b31m",
                "\x1b[?1049h",
                "\x1bP q",
                "\x1b",
                "\x90q",
                "\x9d0;x\x9c",
                "\u202e",
                "\u2066",
                "\u200b",
                "\ufeff",
                "\r",
                "\r\n",
                "\n",
                "\t",
                "\x7f",
                "\x00",
                *("[/markup]", "[bold red]", "\ud800", "\U000e0041", "é", "日本", "💥"),
            ]
        ),
    ),
    max_size=12,
).map("".join)


def harmless(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


@given(HOSTILE)
def test_nothing_that_a_terminal_obeys_survives(text: str) -> None:
    clean = sanitise(text)
    assert harmless(clean)
    assert sanitise(clean) == clean
    assert "\n" not in sanitise(text, multiline=False)


@given(st.binary(max_size=64))
def test_any_bytes_become_text(raw: bytes) -> None:
    assert harmless(sanitise(raw))


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain [TP0] text", "plain [TP0] text"),
        ("a\x1b[1;31mred\x1b[0m", "ared"),
        ("a\x1b]0;evil title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("cut off \x1b]52;c;AAAA", "cut off "),
        ("cut off \x1b[", "cut off "),
        ("50%\r60%\r\n", "50%\n60%\n"),
        ("naïve 日本 é", "naïve 日本 é"),
    ],
)
def test_what_is_dropped_and_what_is_kept(raw: str, clean: str) -> None:
    assert sanitise(raw) == clean


def test_a_limit_cuts_and_shows_that_it_did() -> None:
    assert sanitise("x" * 100, limit=10) == "x" * 9 + "…"
    assert sanitise("x" * 10, limit=10) == "x" * 10


@given(HOSTILE, st.lists(st.integers(1, 7), max_size=40))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(text: str, sizes: list[int]) -> None:
    raw = text.encode("utf-8", "surrogatepass") + b"\xff\n end"
    whole = LineDecoder()
    expected = whole.feed(raw) + whole.close()
    pieces = LineDecoder()
    found: list[str] = []
    position = 0
    for size in [*sizes, len(raw)]:
        found += pieces.feed(raw[position : position + size])
        position += size
    assert found + pieces.close() == expected
    assert all(harmless(line) and "\n" not in line for line in expected)


def test_an_endless_line_is_cut_counted_and_costs_no_memory() -> None:
    decoder = LineDecoder()
    for _ in range(64):
        assert decoder.feed(b"z" * 65536) == []
        assert len(decoder._rest) <= MAX_LINE + 1024
    (line,) = decoder.feed(b"\n")
    assert len(line) < MAX_LINE + 64
    assert str(64 * 65536 - MAX_LINE) in line
    assert decoder.feed(b"next\n") == ["next"]


SECRET = "Zq7-very.secret_VALUE"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {SECRET} --port 1",
        f"--admin-api-key={SECRET}",
        f"['--api-key', '{SECRET}', '--port']",
        f"server_args=ServerArgs(model='x', api_key='{SECRET}', admin_api_key=None)",
        f'{{"api_key": "{SECRET}", "port": 1}}',
        f"HF_TOKEN={SECRET} python -m x",
        f"Authorization: Bearer {SECRET}",
        f"watermark_key: '{SECRET}'",
        "hf_abcdefghijklmnopqrstuvwx",
    ],
)
def test_secrets_in_the_forms_that_sglang_prints(text: str) -> None:
    clean = redact(text)
    assert SECRET not in clean
    assert "hf_abc" not in clean
    assert REDACTED in clean
    assert redact(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 1, #token: 17, token usage: 0.00, accept len: 1.00",
        "mask_token=<|MASK|>, mask_token_id=511",
        "--max-total-tokens 8192 --tokenizer-path /models/x --num-tokens 4",
        "api_key=None, admin_api_key=None",
        "max_total_num_tokens=8192",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text


def test_known_values_go_wherever_they_stand() -> None:
    assert redact("a swordfish-1 b", ["swordfish-1"]) == f"a {REDACTED} b"
    assert redact("a the b", ["the"]) == "a the b"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
        max_leaves=10,
    )
)
def test_a_mapping_keeps_its_shape(value: object) -> None:
    document = {"deep": [value, {"api_key": SECRET, "n": 3}], "max_total_tokens": 8192, "hf_token": SECRET}
    clean = redact_mapping(document)
    assert SECRET not in json.dumps(clean)
    assert isinstance(clean, dict)
    assert clean["max_total_tokens"] == 8192


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("--admin-api-key", True),
        ("HF_TOKEN", True),
        ("ssl_keyfile_password", True),
        ("accessToken", True),
        ("tokenizer_path", False),
        ("mask_token", False),
        ("keyboard", False),
        ("port", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_redaction_leaves_json_valid() -> None:
    text = json.dumps({"api_key": SECRET, "x": [1, 2]})
    assert json.loads(redact(text)) == {"api_key": REDACTED, "x": [1, 2]}
    assert not re.search(SECRET, redact(text))
