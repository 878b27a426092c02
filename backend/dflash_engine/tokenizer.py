"""The target's tokenizer.json (byte-level BPE), streaming decoding and ChatML prompts."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from .api import EngineConfigError, RequestError

_CHATML = ("<|im_start|>", "<|im_end|>")


class ByteLevelTokenizer:
    """``Tokenizer`` of the engine's API over Hugging Face's ``tokenizers``."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            kind = json.loads(text)["decoder"]["type"]
            self._tokenizer = HFTokenizer.from_str(text)
        except OSError as error:
            raise EngineConfigError(
                "tokenizer.json", f"cannot be read: {error.strerror}", where=str(folder)
            ) from error
        except Exception as error:  # tokenizers raises bare Exception for a bad file
            raise EngineConfigError(
                "tokenizer.json", f"cannot be used: {error!r}", where=str(folder)
            ) from error
        if kind != "ByteLevel":
            raise EngineConfigError(
                "decoder", f"this engine reads ByteLevel only, not {kind!r}", where=str(path)
            )
        self._vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if self._vocab_size > vocab_size:
            raise EngineConfigError(
                "tokenizer.json", f"{self._vocab_size} tokens, the model has {vocab_size}", where=str(folder)
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {i: t.content for i, t in added.items()}
        self._chatml = _has_chatml(folder) and all(
            self._tokenizer.token_to_id(t) is not None for t in _CHATML
        )

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        decoder = self.incremental(skip_special_tokens=skip_special_tokens)
        return decoder.feed(token_ids) + decoder.finish()

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)

    def incremental(self, *, skip_special_tokens: bool = True) -> ByteDecoder:
        return ByteDecoder(self._tokenizer, self._special, skip_special_tokens)

    def chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        if not self._chatml:
            raise RequestError("This model has no ChatML chat template; use /v1/completions.")
        parts = []
        for i, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise RequestError(f"messages[{i}] needs a role and a content, both text.")
            parts.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
        return "".join(parts) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class ByteDecoder:
    """``IncrementalDecoder`` of the engine's API: bytes of the tokens through a UTF-8 decoder."""

    def __init__(self, tokenizer: HFTokenizer, special: Mapping[int, str], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._skip = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self._one, token_ids))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _one(self, token_id: int) -> str:
        if token_id in self._special:
            text = "" if self._skip else self._special[token_id]
            return self._utf8.decode(text.encode())
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            raise RequestError(f"{token_id} is no token of this model.")
        return self._utf8.decode(bytes(_BYTE_OF[c] for c in piece))


def _has_chatml(folder: Path) -> bool:
    """Whether tokenizer_config.json declares a chat template made of ChatML marks."""
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return False
    try:
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise EngineConfigError(
            "tokenizer_config.json", f"cannot be read: {error}", where=str(folder)
        ) from error
    return isinstance(template, str) and all(mark in template for mark in _CHATML)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next free code from 256
    on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
