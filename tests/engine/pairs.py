"""Model pairs for the engine's tests: a tiny random one written to disk, and the pieces of a loaded one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams, StepReport
from dflash_engine.config import StackConfig, read_drafter, read_target
from dflash_engine.drafter import Drafter
from dflash_engine.engine import ReferenceEngine, load_engine
from dflash_engine.layer import layer_shapes
from dflash_engine.target import Target

VOCAB, MASK, BLOCK, WINDOW, POSITIONS = 24, 23, 6, 8, 512


def stack_fields(layers: int, vocab: int = VOCAB) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": None,
        "vocab_size": vocab,
    }


def target_fields(vocab: int = VOCAB) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **stack_fields(3, vocab),
        "eos_token_id": 0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def drafter_fields(vocab: int = VOCAB) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        **stack_fields(2, vocab),
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": vocab - 1, "target_layer_ids": [0, 2]},
        "layer_types": ["sliding_attention", "full_attention"],
        "num_target_layers": 3,
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "tie_word_embeddings": True,
    }


@dataclass(frozen=True)
class TinyPair:
    """Folders of a random pair; edit the files before loading to make it wrong."""

    target: Path
    drafter: Path

    def edit(self, which: str, **changes: object) -> None:
        """Set (or with ``...`` delete) top-level fields of ``which``'s config.json."""
        path = (self.target if which == "target" else self.drafter) / "config.json"
        fields = json.loads(path.read_text())
        for name, value in changes.items():
            fields[name] = value
            if value is ...:
                del fields[name]
        path.write_text(json.dumps(fields))

    def config(self, algorithm: Algorithm = Algorithm.NONE, **settings: Any) -> EngineConfig:
        return EngineConfig(self.target, self.drafter, algorithm, **{"context_length": 256, **settings})

    def load(self, algorithm: Algorithm = Algorithm.NONE, **settings: Any) -> ReferenceEngine:
        return load_engine(self.config(algorithm, **settings))

    def models(self) -> tuple[Target, Drafter]:
        """Target (with the drafter's feature layers) and drafter, without an engine around them."""
        return load_models(self.target, self.drafter, POSITIONS)


def load_models(target_folder: Path, drafter_folder: Path, positions: int) -> tuple[Target, Drafter]:
    target_config = read_target(target_folder)
    drafter_config = read_drafter(drafter_folder, target_config)
    target = Target(
        target_folder, target_config, positions=positions, feature_layers=drafter_config.target_layer_ids
    )
    return target, Drafter(drafter_folder, drafter_config, target, positions=positions)


def _stack(fields: dict[str, Any]) -> StackConfig:
    return StackConfig(
        fields["num_hidden_layers"],
        fields["hidden_size"],
        fields["intermediate_size"],
        fields["num_attention_heads"],
        fields["num_key_value_heads"],
        fields["head_dim"],
        fields["rms_norm_eps"],
        fields["rope_theta"],
        fields["max_position_embeddings"],
        fields["vocab_size"],
    )


def _random_layers(
    stack: StackConfig, rng: np.random.Generator, prefix: str
) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {}
    for i in range(stack.layers):
        for name, shape in layer_shapes(stack, i).items():
            scale = 1.0 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
            values = (
                rng.standard_normal(shape) * scale if len(shape) > 1 else 1 + 0.3 * rng.standard_normal(shape)
            )
            tensors[prefix + name] = values.astype(np.float32)
    return tensors


def write_tiny_pair(folder: Path, *, seed: int = 0, vocab: int = VOCAB, sharpness: float = 3.0) -> TinyPair:
    """A random pair. ``sharpness`` scales the final norm: how far the target is from uniform."""
    rng = np.random.default_rng(seed)
    pair = TinyPair(folder / "target", folder / "drafter")
    for path, fields in ((pair.target, target_fields(vocab)), (pair.drafter, drafter_fields(vocab))):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(fields))
    stack = _stack(target_fields(vocab))
    hidden = stack.hidden_size
    tensors = _random_layers(stack, rng, "model.")
    tensors["model.embed_tokens.weight"] = (rng.standard_normal((vocab, hidden)) / np.sqrt(hidden)).astype(
        "f4"
    )
    tensors["model.norm.weight"] = np.full(hidden, sharpness, dtype=np.float32)
    save_file(tensors, str(pair.target / "model.safetensors"))
    draft_stack = _stack(drafter_fields(vocab))
    tensors = _random_layers(draft_stack, rng, "")
    tensors["fc.weight"] = (rng.standard_normal((hidden, 2 * hidden)) / np.sqrt(2 * hidden)).astype(
        np.float32
    )
    tensors["hidden_norm.weight"] = np.ones(hidden, dtype=np.float32)
    tensors["norm.weight"] = np.full(hidden, sharpness, dtype=np.float32)
    save_file(tensors, str(pair.drafter / "model.safetensors"))
    (pair.target / "tokenizer.json").write_text(json.dumps(_tokenizer(vocab)))
    return pair


def _tokenizer(vocab: int) -> dict[str, Any]:
    """One token per letter, a byte-level BPE without merges; id 0 is the end of text."""
    letters = [chr(ord("a") + i) for i in range(26)] + [chr(ord("A") + i) for i in range(26)]
    special = {"id": 0, "content": "<|endoftext|>", "special": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**special, **plain}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {"<|endoftext|>": 0, **{c: i + 1 for i, c in enumerate(letters[: vocab - 1])}},
            "merges": [],
        },
    }


def drain(engine: ReferenceEngine, limit: int = 10_000) -> list[StepReport]:
    """Step until there is no work left."""
    reports = []
    while engine.has_work:
        reports.append(engine.step())
        assert len(reports) < limit, "the engine does not come to an end"
    return reports


def outputs(reports: list[StepReport]) -> dict[str, list[int]]:
    """Output tokens by request."""
    tokens: dict[str, list[int]] = {}
    for report in reports:
        for output in report.outputs:
            tokens.setdefault(output.id, []).extend(output.token_ids)
    return tokens


def generate(engine: ReferenceEngine, prompt: list[int], **sampling: Any) -> list[int]:
    """One request to its end; end-of-text tokens are ignored unless told otherwise."""
    params = SamplingParams(**{"ignore_eos": True, "max_new_tokens": 40, **sampling})
    engine.add(Request("one", prompt, params))
    return outputs(drain(engine))["one"]
