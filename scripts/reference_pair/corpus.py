"""Corpus stage: Python files -> tokenizer, training tokens, held-out tokens."""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, MASK, IM_START, IM_END = "<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>"
SPECIALS = [END_OF_TEXT, MASK, IM_START, IM_END]  # ids 0..3
VOCABULARY = 4096
MAX_POSITIONS = 16384
HELD_OUT_PER_MILLE = 30
IN_CHAT_FORM = 12  # one training file in so many, so that the chat template means something

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SKIPPED = re.compile(
    r"(^|/)(tests?|testing|test_[^/]*|[^/]*_tests?\.py|conftest\.py|_?vendor(ed)?|third_party|3rdparty|"
    r"_vendor|idle_test|__pycache__|data|datasets|site-packages|"
    r"cudnn|cuda|nvidia[^/]*|googlecloudsdk|encodings|wcwidth|unicode_data)(/|$)"
)


@dataclass(frozen=True)
class Document:
    """One source file; ``path`` is relative to its root."""

    path: str
    text: str

    def digest(self, kind: str) -> int:
        """A stable number of the path, for choosing files without a random generator."""
        return int(hashlib.new(kind, self.path.encode(), usedforsecurity=False).hexdigest(), 16)

    @property
    def held_out(self) -> bool:
        return self.digest("sha1") % 1000 < HELD_OUT_PER_MILLE

    def training_text(self) -> str:
        """The file as it is, or wrapped in the chat template."""
        if self.held_out or self.digest("md5") % IN_CHAT_FORM:
            return self.text
        return (
            f"{IM_START}user\nWrite the Python file {self.path}.{IM_END}\n"
            f"{IM_START}assistant\n{self.text}{IM_END}\n"
        )


def documents(roots: list[Path], package_cap: int) -> Iterator[Document]:
    """Files of 0.3 to 200 kB, no tests or vendored trees or generated tables, no duplicates."""
    paths: set[str] = set()
    contents: set[bytes] = set()
    characters: dict[str, int] = {}
    for root in roots:
        for file in _python_files(root):
            path = file.relative_to(root).as_posix()
            if path in paths or not 300 <= file.stat().st_size <= 200_000:
                continue
            try:
                text = file.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            content = hashlib.sha1(re.sub(r"\s+", " ", text).encode(), usedforsecurity=False).digest()
            too_wide = max(map(len, text.split("\n"))) > 2000
            package = path.split("/")[0]
            size = characters.get(package, 0) + len(text)
            if content in contents or too_wide or size > package_cap or any(s in text for s in SPECIALS):
                continue
            characters[package] = size
            paths.add(path)
            contents.add(content)
            yield Document(path, text)


def _python_files(root: Path, below: str = "") -> Iterator[Path]:
    entries = sorted((root / below).iterdir(), key=lambda e: e.name)
    for entry in (e for e in entries if e.is_file()):
        if entry.suffix == ".py" and not SKIPPED.search(entry.name):
            yield entry
    for entry in (e for e in entries if e.is_dir() and not e.is_symlink()):
        if not SKIPPED.search(entry.name):
            yield from _python_files(root, entry.relative_to(root).as_posix())


def train_tokenizer(texts: list[str], characters: int) -> Tokenizer:
    """Byte-level BPE on a random choice of texts, up to so many characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    picked, size = [], 0
    for i in np.random.default_rng(0).permutation(len(texts)):
        picked.append(texts[i])
        size += len(texts[i])
        if size > characters:
            break
    tokenizer.train_from_iterator(picked, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json and the two files that transformers reads beside it."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokens = {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT, "mask_token": MASK}
    config = {
        "bos_token": None,
        **tokens,
        "additional_special_tokens": [IM_START, IM_END],
        "added_tokens_decoder": {str(i): {"content": s, **plain} for i, s in enumerate(SPECIALS)},
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    special = {**tokens, "additional_special_tokens": [IM_START, IM_END]}
    (out / "special_tokens_map.json").write_text(json.dumps(special, indent=2))


def load(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training tokens, held-out tokens, and the held-out files' offsets."""
    with lzma.open(folder / "train.u16.xz") as file:
        train = np.frombuffer(file.read(), dtype=np.uint16)
    return train, *load_held_out(folder)


def load_held_out(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Held-out tokens, and offsets of the files in them."""
    with np.load(folder / "val.npz") as stored:
        return stored["ids"], stored["offsets"]


def main(args: argparse.Namespace) -> None:
    """The stage: writes tokenizer/, train.u16.xz, val.npz and corpus.json."""
    docs = list(documents(args.roots, args.package_cap))
    print(f"{len(docs)} files, {sum(len(d.text) for d in docs) / 1e6:.1f} M characters", flush=True)
    tokenizer = train_tokenizer([d.text for d in docs if not d.held_out], args.tokenizer_chars)
    save_tokenizer(tokenizer, args.out / "tokenizer")
    print(f"tokenizer trained: {tokenizer.get_vocab_size()} tokens", flush=True)
    train, held_out, offsets = [], [], [0]
    for i in range(0, len(docs), 512):
        part = docs[i : i + 512]
        encoded = tokenizer.encode_batch([d.training_text() for d in part])
        for doc, encoding in zip(part, encoded, strict=True):
            ids = np.array([*encoding.ids, SPECIALS.index(END_OF_TEXT)], dtype=np.uint16)
            if doc.held_out:
                held_out.append(ids)
                offsets.append(offsets[-1] + len(ids))
            else:
                train.append(ids)
    tokens = np.concatenate(train)
    with lzma.open(args.out / "train.u16.xz", "wb", preset=1) as file:
        file.write(tokens.tobytes())
    np.savez_compressed(args.out / "val.npz", ids=np.concatenate(held_out), offsets=np.array(offsets))
    summary = {
        "files": len(docs),
        "val_files": len(held_out),
        "characters": sum(len(d.text) for d in docs),
        "train_tokens": len(tokens),
        "val_tokens": offsets[-1],
    }
    (args.out / "corpus.json").write_text(json.dumps(summary, indent=1))
    print(summary, flush=True)
