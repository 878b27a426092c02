"""Text in, text out: whole characters only, special tokens, ChatML."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_engine.api import RequestError
from dflash_engine.reference_pair import TARGET, read_prompts
from dflash_engine.tokenizer import ByteLevelTokenizer
from engine.pairs import VOCAB, TinyPair

TOKENIZER = ByteLevelTokenizer(TARGET, 4096)


@given(st.text(max_size=60))
def test_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@given(st.text(max_size=30), st.integers(1, 5))
def test_streamed_pieces_add_up_and_never_split_a_character(text: str, step: int) -> None:
    ids = TOKENIZER.encode(text)
    decoder = TOKENIZER.incremental(skip_special_tokens=False)
    pieces = [decoder.feed(ids[i : i + step]) for i in range(0, len(ids), step)]
    assert "".join(pieces) + decoder.finish() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in p for p in pieces)


def test_an_unfinished_character_comes_out_as_a_replacement() -> None:
    ids = TOKENIZER.encode("日")
    assert len(ids) > 1
    decoder = TOKENIZER.incremental()
    assert decoder.feed(ids[:-1]) == ""
    assert decoder.finish() == "\ufffd"


def test_agrees_with_the_tokenizers_library() -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    for prompt in read_prompts()[:12]:
        ids = library.encode(prompt.text).ids
        assert TOKENIZER.encode(prompt.text) == ids
        assert TOKENIZER.decode(ids) == library.decode(ids)


def test_held_out_prompts_have_the_length_they_claim() -> None:
    prompts = read_prompts()
    assert len(prompts) == 44
    for prompt in prompts:
        assert abs(len(TOKENIZER.encode(prompt.text)) - prompt.context_tokens) <= 2


def test_special_tokens() -> None:
    ids = TOKENIZER.encode("a<|im_end|>b")
    assert 3 in ids
    assert TOKENIZER.decode(ids) == "ab"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"
    assert TOKENIZER.token_text(3) == "<|im_end|>"
    with pytest.raises(RequestError, match="5000 is no token"):
        TOKENIZER.decode([5000])


def test_chatml() -> None:
    text = TOKENIZER.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    expected = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
    assert text == expected + "<|im_start|>assistant\n"
    assert TOKENIZER.chat([], add_generation_prompt=False) == ""


@pytest.mark.parametrize(
    "message", [{}, {"role": "user"}, {"content": "x"}, {"role": "user", "content": None}]
)
def test_bad_messages(message: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"messages\[1\]"):
        TOKENIZER.chat([{"role": "user", "content": "x"}, message])


def test_no_chat_template(tiny: TinyPair) -> None:
    tokenizer = ByteLevelTokenizer(tiny.target, VOCAB)
    with pytest.raises(RequestError, match="no ChatML chat template"):
        tokenizer.chat([{"role": "user", "content": "x"}])
