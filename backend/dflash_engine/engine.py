"""The reference engine: loading, one step at a time, live changes, figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from .accounting import Totals
from .api import (
    Algorithm,
    EngineConfig,
    EngineStats,
    ModelInfo,
    OnStage,
    Request,
    RequestOutput,
    SamplingParams,
    StartupStage,
    StepKind,
    StepReport,
    WindowMode,
)
from .config import DrafterConfig, TargetConfig, read_drafter, read_target
from .decoding import Decoder
from .drafter import Drafter
from .requests import Sequence, check_request
from .sampling import chooser
from .scheduler import Scheduler
from .settings import Live, changed, check_block_size, check_config, check_positions, first_live
from .target import Segment, Target, causal_bias
from .tokenizer import ByteLevelTokenizer
from .weights import F32

_CONTEXTS_IN_POOL = 4


def load_engine(config: EngineConfig, on_stage: OnStage | None = None) -> ReferenceEngine:
    """Read both models and make an engine ready to serve; ``on_stage`` is told of each finished part.

    Raises ``EngineConfigError`` for anything in the settings, configs, weights or tokenizer that it cannot
    run.
    """
    check_config(config)
    stages = _Stages(on_stage)
    target_config = read_target(config.target_path)
    drafter_config = None
    if config.algorithm is not Algorithm.NONE and config.drafter_path is not None:
        drafter_config = read_drafter(config.drafter_path, target_config)
        check_block_size(config, drafter_config)
    check_positions(config, target_config, drafter_config)
    live = first_live(config, drafter_config)
    tokenizer = ByteLevelTokenizer(config.target_path, target_config.stack.vocab_size)
    block = 0 if drafter_config is None else drafter_config.block_size
    target = Target(
        config.target_path,
        target_config,
        positions=config.context_length + block,
        feature_layers=() if drafter_config is None else drafter_config.target_layer_ids,
    )
    stages.done("target_weights", parameters=target.parameters, bytes=target.nbytes, dtype="float32")
    drafter = None
    if drafter_config is not None and config.drafter_path is not None:
        drafter = Drafter(
            config.drafter_path,
            drafter_config,
            target,
            positions=config.context_length + drafter_config.block_size,
        )
        stages.done(
            "drafter_weights",
            parameters=drafter.parameters,
            bytes=drafter.nbytes,
            dtype="float32",
            block_size=drafter_config.block_size,
            mask_token_id=drafter_config.mask_token_id,
        )
    engine = ReferenceEngine(config, target_config, drafter_config, target, drafter, tokenizer, live)
    stages.done("kv_pool", tokens=engine.stats.capacity_tokens)
    engine.warm_up()
    stages.done("warmup")
    return engine


class _Stages:
    def __init__(self, on_stage: OnStage | None) -> None:
        self._tell = on_stage
        self._since = perf_counter()

    def done(self, name: str, **detail: str | int | float | bool | None) -> None:
        now = perf_counter()
        if self._tell is not None:
            self._tell(StartupStage(name, now - self._since, detail))
        self._since = now


class ReferenceEngine:
    """``Engine`` of the API. Made by ``load_engine``."""

    def __init__(
        self,
        config: EngineConfig,
        target_config: TargetConfig,
        drafter_config: DrafterConfig | None,
        target: Target,
        drafter: Drafter | None,
        tokenizer: ByteLevelTokenizer,
        live: Live,
    ) -> None:
        self._config = config
        self._target_config, self._drafter_config = target_config, drafter_config
        self._target, self._drafter = target, drafter
        self._tokenizer = tokenizer
        self._live = live
        self._decoder = Decoder(target, drafter, config.algorithm)
        self._scheduler = Scheduler(
            config.max_running_requests,
            config.max_total_tokens or _CONTEXTS_IN_POOL * config.context_length,
            config.max_queued_requests,
        )
        self._seeds = np.random.default_rng(config.seed)
        self._totals = Totals()
        self._prefilled_last = False

    # -- what it is
    # -------------------------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def target(self) -> ModelInfo:
        c, path = self._target_config, self._config.target_path
        return _model_info(path, c, self._target.parameters, self._target.nbytes)

    @property
    def drafter(self) -> ModelInfo | None:
        c, path = self._drafter_config, self._config.drafter_path
        if c is None or path is None or self._drafter is None:
            return None
        return _model_info(path, c, self._drafter.parameters, self._drafter.nbytes)

    @property
    def block_size(self) -> int | None:
        return None if self._drafter_config is None else self._drafter_config.block_size

    @property
    def mask_token_id(self) -> int | None:
        return None if self._drafter_config is None else self._drafter_config.mask_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._target_config.eos_token_ids

    @property
    def tokenizer(self) -> ByteLevelTokenizer:
        return self._tokenizer

    # -- requests
    # ---------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def check(self, request: Request) -> None:
        check_request(
            request,
            context_length=self._config.context_length,
            capacity=self._scheduler.capacity,
            vocab_size=self._target_config.stack.vocab_size,
        )

    def add(self, request: Request) -> None:
        self.check(request)
        self._scheduler.enqueue(request)

    def abort(self, request_id: str) -> bool:
        return self._scheduler.abort(request_id)

    def abort_all(self) -> int:
        return self._scheduler.abort_all()

    def flush(self) -> bool:
        return not (self._scheduler.queue or self._scheduler.running)

    def step(self) -> StepReport:
        """Prefill and decode rounds take turns while there is both: a long prompt stalls nobody for long."""
        ended = self._scheduler.take_ended()
        decoding = [s for s in self._scheduler.running if not s.prefilling]
        report = None
        if not (decoding and self._prefilled_last):
            report = self._prefill()
        if report is None and decoding:
            report = self._decode(decoding)
        if report is None:
            report = StepReport(StepKind.IDLE)
        self._prefilled_last = report.kind is StepKind.PREFILL
        self._totals.count(report, ended)
        return replace(report, outputs=ended + report.outputs)

    def _prefill(self) -> StepReport | None:
        """One chunk of prompt tokens: of started prompts first, then of newly admitted ones."""
        left, new = self._config.chunked_prefill_size, 0
        pieces = []
        for sequence in self._scheduler.running:
            if sequence.prefilling and left > 0:
                pieces.append((sequence, min(left, len(sequence.prompt) - sequence.prefilled)))
                left -= pieces[-1][1]
        while left > 0 and (admitted := self._scheduler.admit(self._start)) is not None:
            pieces.append((admitted, min(left, len(admitted.prompt))))
            left -= pieces[-1][1]
            new += 1
        if not pieces:
            return None
        first, timings = self._decoder.prefill(pieces)
        outputs = []
        for (sequence, _), tokens in zip(pieces, first, strict=True):
            if sequence.prefilling:
                outputs.append(RequestOutput(sequence.id, (), committed_tokens=sequence.cache.length))
            else:
                outputs.append(self._output(sequence, tokens))
        return StepReport(
            StepKind.PREFILL,
            tuple(outputs),
            batch_size=len(pieces),
            new_requests=new,
            prefill_tokens=sum(n for _, n in pieces),
            committed=sum(len(o.token_ids) for o in outputs),
            timings=timings,
        )

    def _decode(self, sequences: list[Sequence]) -> StepReport:
        done = self._decoder.decode(sequences, self._live)
        drafted = self._drafter is not None
        outputs = [
            self._output(s, a.tokens, len(a.path) - 1 if drafted else None, t.drafts if drafted else None)
            for s, a, t in zip(sequences, done.accepted, done.trees, strict=True)
        ]
        return StepReport(
            StepKind.DECODE,
            tuple(outputs),
            batch_size=len(sequences),
            committed=sum(len(o.token_ids) for o in outputs),
            verify_passes=len(sequences) if drafted else 0,
            timings=done.timings,
        )

    def _output(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        accepted: int | None = None,
        proposed: int | None = None,
    ) -> RequestOutput:
        tokens, finish = sequence.take(tokens)
        if finish is not None:
            self._scheduler.finish(sequence)
        return RequestOutput(sequence.id, tokens, finish, accepted, proposed, sequence.cache.length)

    def _start(self, request: Request) -> Sequence:
        sampling = request.sampling
        seed = int(self._seeds.integers(1 << 63)) if sampling.seed is None else sampling.seed
        length = len(request.token_ids) + sampling.max_new_tokens
        draft_cache = None
        if self._drafter is not None and self._live.windows is not None:
            draft_cache = self._drafter.new_cache(
                self._live.windows, compact=self._config.compact_draft_cache, capacity=length
            )
        return Sequence(
            request=request,
            prompt=list(request.token_ids),
            choose=chooser(sampling, seed),
            stop_tokens=frozenset() if sampling.ignore_eos else self.eos_token_ids | sampling.stop_token_ids,
            cache=self._target.new_cache(length + self._rows_per_step()),
            draft_cache=draft_cache,
        )

    def _rows_per_step(self) -> int:
        """Rows of one request's verify pass, the root included."""
        if self._drafter_config is None:
            return 1
        return 1 + (self._live.budget or self._drafter_config.block_size - 1)

    def next_logits(self, token_ids: list[int]) -> F32:
        """Target logits ``[vocabulary]`` after ``token_ids``, computed on the side: no request, no
        counters.
        """
        cache = self._target.new_cache(len(token_ids))
        chunk = self._config.chunked_prefill_size
        for start in range(0, len(token_ids), chunk):
            part = token_ids[start : start + chunk]
            segment = Segment(cache, len(part), causal_bias(len(part)))
            hidden, _ = self._target.forward(part, range(start, start + len(part)), [segment])
            cache.commit(range(len(part)))
        logits: F32 = self._target.head(hidden[-1:])[0]
        return logits

    def warm_up(self) -> None:
        """Serve one short request, so that the first real one finds BLAS and caches ready. Not counted."""
        new = min(4, self._config.context_length - 1)
        if new > 0:
            self.add(Request("warm-up", [0], SamplingParams(max_new_tokens=new, ignore_eos=True, seed=0)))
        while self.has_work:
            self.step()
        self._totals = Totals()

    # -- live changes and figures
    # ------------------------------------------------------------------------------

    def reconfigure(
        self,
        *,
        budget: int | None = None,
        topk: int | None = None,
        window_mode: WindowMode | None = None,
        window_size: int | None = None,
    ) -> tuple[str, ...]:
        before = self._live.windows
        self._live = changed(
            self._live,
            self._config,
            self._drafter_config,
            budget=budget,
            topk=topk,
            window_mode=window_mode,
            window_size=window_size,
        )
        after = self._live.windows
        if after is None or after == before or not self._config.compact_draft_cache:
            return ()
        short = 0
        for sequence in self._scheduler.running:
            if sequence.draft_cache is not None:
                sequence.draft_cache.set_keep(after.keep(), sequence.reserved)
                short += sequence.draft_cache.lacks_rows
        if short:
            note = f"{short} running request(s) gave back draft KV rows that the new window would see: "
            return (note + "they draft without them; new requests are not affected.",)
        return ()

    @property
    def stats(self) -> EngineStats:
        running, live, totals = self._scheduler.running, self._live, self._totals
        drafts = [s.draft_cache for s in running if s.draft_cache is not None]
        windows = live.windows
        return EngineStats(
            algorithm=self._config.algorithm,
            budget=live.budget,
            topk=live.topk,
            window_mode=None if windows is None else windows.mode,
            window_size=None if windows is None else windows.size,
            layer_windows=() if windows is None else windows.layers,
            running=len(running),
            queued=len(self._scheduler.queue),
            used_tokens=sum(s.cache.length for s in running),
            reserved_tokens=self._scheduler.reserved,
            capacity_tokens=self._scheduler.capacity,
            target_kv_bytes=sum(s.cache.bytes_held for s in running),
            draft_kv_bytes=sum(c.bytes_held for c in drafts),
            draft_kv_bytes_allocated=sum(c.bytes_allocated for c in drafts),
            draft_kv_bytes_uncompacted=sum(c.bytes_uncompacted for c in drafts),
            weight_bytes=self._target.nbytes + (0 if self._drafter is None else self._drafter.nbytes),
            **totals.as_stats(),
        )


def _model_info(
    path: Path, config: TargetConfig | DrafterConfig, parameters: int, weight_bytes: int
) -> ModelInfo:
    stack = config.stack
    return ModelInfo(
        path=path,
        name=path.name,
        architecture=config.architecture,
        layers=stack.layers,
        hidden_size=stack.hidden_size,
        vocab_size=stack.vocab_size,
        parameters=parameters,
        weight_bytes=weight_bytes,
        max_position_embeddings=stack.max_position_embeddings,
    )
