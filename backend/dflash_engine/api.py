"""What the reference engine offers to the code in front of it (HTTP server, verify, benchmarks).

Everything here is synchronous and owned by one thread: the caller adds requests, calls ``step()`` until
``has_work`` is false, and reads the report of each step. Nothing here blocks on I/O.

    from dflash_engine.engine import load_engine          # load_engine(config, on_stage=None) -> Engine

    engine = load_engine(EngineConfig(target, drafter, algorithm=Algorithm.DDTREE, budget=16))
    engine.add(Request("r1", engine.tokenizer.encode("import os\n"), SamplingParams(max_new_tokens=32)))
    while engine.has_work:
        for out in engine.step().outputs: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

MAX_BUDGET = 1024
"""Largest draft-tree budget (nodes, root not counted): the largest that the DDTree paper tries."""

DEFAULT_CONTEXT_LENGTH = 8192
DEFAULT_CHUNKED_PREFILL = 512


class Algorithm(StrEnum):
    """How tokens are produced; the spellings of SGLang's ``--speculative-algorithm``."""

    NONE = "NONE"
    """Autoregressive: one target pass per token."""
    DFLASH = "DFLASH"
    """One block of drafts verified as a chain."""
    DDTREE = "DDTREE"
    """The same drafts verified as a tree of at most ``budget`` nodes (arXiv:2604.12989)."""


class WindowMode(StrEnum):
    """What the drafter's layers may attend to in the context."""

    DECLARED = "declared"
    """Per layer, as the drafter's config.json says (SGLang >= 0.5.14): ``sliding_attention`` is causal and
    sees ``sliding_window`` positions, itself included; ``full_attention`` sees all context and the whole
    block, both ways."""
    IGNORED = "ignored"
    """All layers full and non-causal (SGLang 0.5.11 to 0.5.13 without the window flag)."""
    CLAMPED = "clamped"
    """All layers non-causal over the last ``window_size`` context tokens and the whole block
    (SGLang 0.5.11 to 0.5.13 with the window flag)."""


class StepKind(StrEnum):
    """What one step did. Like SGLang's scheduler without mixed chunks, a step is one or the other."""

    PREFILL = "prefill"
    DECODE = "decode"
    IDLE = "idle"


class EngineConfigError(Exception):
    """A model folder or an engine setting that this engine cannot run.

    ``field`` is the config.json field, tensor or setting at fault; ``where`` the file, if there is one.
    """

    def __init__(self, field_name: str, message: str, *, where: str = "") -> None:
        self.field = field_name
        self.where = where
        self.message = message
        super().__init__(f"{where + ': ' if where else ''}{field_name}: {message}")


class RequestError(Exception):
    """One request that cannot be served; the engine and every other request go on.

    ``status`` is the HTTP status that SGLang answers with; the text follows SGLang's.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to run one engine. Checked when the engine is loaded (``EngineConfigError``)."""

    target_path: Path
    drafter_path: Path | None = None
    """Needed unless ``algorithm`` is NONE; not loaded when it is."""
    algorithm: Algorithm = Algorithm.NONE
    budget: int | None = None
    """DDTREE: nodes of the draft tree, root not counted, 1..MAX_BUDGET. None: block size - 1."""
    topk: int | None = None
    """DDTREE: candidates per position, 1..vocabulary. None: ``min(budget, vocabulary)``, the paper's."""
    block_size: int | None = None
    """Must be the drafter's own (``block_size`` of its config.json) when given."""
    window_mode: WindowMode = WindowMode.DECLARED
    window_size: int | None = None
    """Tokens, >= block size. CLAMPED: the window of every layer (None: the drafter's ``sliding_window``).
    DECLARED: every layer, full ones too, is further held to the last ``window_size`` context tokens, as
    SGLang's ``--speculative-draft-window-size`` does (None: no further limit). IGNORED: not used."""
    compact_draft_cache: bool = False
    """False: one draft slot per target token, whatever the window (SGLang). True: a layer's draft KV rows
    that no later block can see are given back."""
    context_length: int = DEFAULT_CONTEXT_LENGTH
    """Prompt plus completion of one request, tokens; at most the target's ``max_position_embeddings``."""
    max_running_requests: int = 8
    max_total_tokens: int | None = None
    """KV capacity over all running requests, tokens. None: four contexts."""
    max_queued_requests: int | None = None
    """None: no limit."""
    chunked_prefill_size: int = DEFAULT_CHUNKED_PREFILL
    """Prompt tokens per prefill step."""
    seed: int = 0
    """For requests without a seed of their own."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen. Checked by ``Engine.add`` (``RequestError``)."""

    temperature: float = 0.0
    """0: greedy. Otherwise 0 < temperature <= 100 (SGLang's own default is 1.0: the server's business)."""
    top_p: float = 1.0
    """0 < top_p <= 1."""
    max_new_tokens: int = 128
    """>= 0 (0: prompt only, finishes with ``length`` after the prefill)."""
    stop_token_ids: frozenset[int] = frozenset()
    """Besides the target's own end-of-text tokens."""
    ignore_eos: bool = False
    """True: neither the model's end-of-text tokens nor ``stop_token_ids`` end the request (SGLang)."""
    seed: int | None = None
    """Same seed, same prompt: same tokens, whatever else runs, with the same algorithm settings."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. ``id`` is the caller's and must not be in use."""

    id: str
    token_ids: Sequence[int]
    sampling: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended, as in SGLang's ``finish_reason``."""

    type: str
    """``stop``, ``length`` or ``abort``."""
    matched: int | None = None
    """``stop``: the token that ended it (it is the last of the output tokens)."""
    length: int | None = None
    """``length``: the limit that was reached, tokens."""
    message: str | None = None
    """``abort``: why."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step did for one request."""

    id: str
    token_ids: tuple[int, ...]
    """New tokens, in order; may be empty (a prompt chunk that was not the last one, an abort)."""
    finish: FinishReason | None = None
    """Set once; the id is free again afterwards."""
    accepted_drafts: int | None = None
    """Draft tokens that the target accepted in this step's verify pass, bonus not counted. None when the step
    verified nothing (prefill, AR). May exceed ``len(token_ids) - 1`` in the last step: the rest was cut."""
    proposed_drafts: int | None = None
    """Draft nodes that were verified (chain: block size - 1; tree: nodes without the root). None as above."""
    committed_tokens: int = 0
    """Tokens of prompt and output whose KV is held, after the step."""


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Wall-clock seconds of one step by part; they add up to ``total`` but for bookkeeping."""

    draft: float = 0.0
    """Drafter pass, head included."""
    tree: float = 0.0
    """Top-k, best-first heap and mask."""
    target: float = 0.0
    """Target pass: prefill, AR step or verification, head included."""
    sample: float = 0.0
    """Choosing target tokens and walking the tree."""
    commit: float = 0.0
    """KV compaction and the drafter's new context rows."""
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """One call of ``Engine.step``."""

    kind: StepKind
    outputs: tuple[RequestOutput, ...] = ()
    batch_size: int = 0
    """Requests in this step's forward pass."""
    new_requests: int = 0
    """PREFILL: requests whose first prompt chunk was in this step."""
    prefill_tokens: int = 0
    """PREFILL: prompt tokens computed in this step (no prefix cache: all of them are new)."""
    committed: int = 0
    """Output tokens made in this step, over all requests."""
    verify_passes: int = 0
    """DECODE with a drafter: requests verified in this step."""
    timings: StepTimings = StepTimings()


@dataclass(frozen=True, slots=True)
class LayerWindow:
    """What one drafter layer attends to now."""

    layer: int
    declared: str
    """``sliding_attention`` or ``full_attention``, from config.json."""
    window: int | None
    """Context positions that the block's first slot sees, itself included for causal layers. None: all."""
    causal: bool


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model in figures."""

    path: Path
    name: str
    """Folder name."""
    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    parameters: int
    weight_bytes: int
    """Bytes held in memory (float32)."""
    max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine. Counters run from the start of the engine."""

    algorithm: Algorithm
    budget: int | None
    """DDTREE only."""
    topk: int | None
    """DDTREE only: as given (None: the budget decides)."""
    window_mode: WindowMode | None
    """None without a drafter, like ``window_size`` and ``layer_windows``."""
    window_size: int | None
    layer_windows: tuple[LayerWindow, ...]
    running: int
    """Requests that hold KV, prefilling ones included."""
    queued: int
    used_tokens: int
    """Tokens whose target KV is held."""
    reserved_tokens: int
    """Tokens promised to the running requests (prompt and completion in full)."""
    capacity_tokens: int
    target_kv_bytes: int
    """Bytes of the rows in use."""
    draft_kv_bytes: int
    """Bytes of the draft KV rows really held (after compaction, if on)."""
    draft_kv_bytes_allocated: int
    """Bytes of the buffers behind them: the rows held and room for more."""
    draft_kv_bytes_uncompacted: int
    """What one draft slot per target token would hold."""
    weight_bytes: int
    prompt_tokens_total: int
    generated_tokens_total: int
    requests_total: int
    """Finished requests, aborted ones included."""
    aborted_total: int
    verify_passes_total: int
    accepted_drafts_total: int
    proposed_drafts_total: int


@dataclass(frozen=True, slots=True)
class StartupStage:
    """One finished part of loading, in order: target_weights, drafter_weights, kv_pool, warmup."""

    name: str
    seconds: float
    detail: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


OnStage = Callable[[StartupStage], None]


class IncrementalDecoder(Protocol):
    """Turns a stream of tokens into a stream of text; never emits half a character."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """New text. Bytes of an unfinished character are held back."""
        ...

    def finish(self) -> str:
        """What is still held back, with U+FFFD for bytes that never became a character."""
        ...


class Tokenizer(Protocol):
    """The target's tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; special tokens written out in the text become their own ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str:
        """One token as text, special ones too."""
        ...

    def incremental(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder: ...

    def chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation. ``RequestError`` when the target has no ChatML template, a
        message lacks ``role`` or ``content``, or one of them is not text."""
        ...


class Engine(Protocol):
    """One loaded engine. Not thread-safe: one thread owns it (``stats`` and ``info`` too)."""

    @property
    def config(self) -> EngineConfig:
        """As loaded; live changes show in ``stats``."""
        ...

    @property
    def target(self) -> ModelInfo: ...

    @property
    def drafter(self) -> ModelInfo | None: ...

    @property
    def block_size(self) -> int | None: ...

    @property
    def mask_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def has_work(self) -> bool:
        """A request is running or queued, or an abort is still to be reported by ``step``."""
        ...

    @property
    def stats(self) -> EngineStats: ...

    def check(self, request: Request) -> None:
        """Raise what ``add`` would raise, without adding."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request. ``RequestError``: empty or too long a prompt, a token outside the vocabulary, bad
        sampling parameters, an id in use (409), a full queue (503)."""
        ...

    def abort(self, request_id: str) -> bool:
        """End a request now; the next ``step`` reports it with ``abort``. False: no such request."""
        ...

    def abort_all(self) -> int:
        """Abort every request; returns how many."""
        ...

    def step(self) -> StepReport:
        """One prefill chunk or one decode round of all running requests; IDLE when there is nothing to do."""
        ...

    def reconfigure(
        self,
        *,
        budget: int | None = None,
        topk: int | None = None,
        window_mode: WindowMode | None = None,
        window_size: int | None = None,
    ) -> tuple[str, ...]:
        """Change what is given from the next step on; None leaves a value as it is, 0 for ``topk`` or
        ``window_size`` takes its limit away. All or nothing: ``EngineConfigError`` changes nothing. Output
        stays lossless throughout. Returns notes for the user, e.g. that running requests already gave back
        draft KV rows that a wider window would see (new requests are not affected)."""
        ...

    def flush(self) -> bool:
        """SGLang's ``/flush_cache``: False while requests are running or queued. Nothing is cached between
        requests, so there is nothing else to do; counters stay."""
        ...
