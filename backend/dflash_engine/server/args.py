"""Command line of the engine server, in SGLang's spellings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dflash_engine.api import (
    DEFAULT_CHUNKED_PREFILL,
    DEFAULT_CONTEXT_LENGTH,
    Algorithm,
    EngineConfig,
    EngineConfigError,
    WindowMode,
)

BUILTIN = "builtin:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """What the server was asked for, under the names that ``/server_info`` shows."""

    model_path: str
    host: str
    port: int
    served_model_name: str
    speculative_algorithm: str | None
    speculative_draft_model_path: str | None
    speculative_dflash_block_size: int | None
    speculative_ddtree_budget: int | None
    speculative_ddtree_topk: int | None
    speculative_draft_window_mode: str
    speculative_draft_window_size: int | None
    speculative_draft_compact_cache: bool
    context_length: int
    max_running_requests: int
    max_total_tokens: int | None
    max_queued_requests: int | None
    chunked_prefill_size: int
    decode_log_interval: int
    random_seed: int
    enable_metrics: bool
    skip_server_warmup: bool

    def engine_config(self) -> EngineConfig:
        """The engine's own settings. Raises EngineConfigError for a model path that does not exist."""
        drafter = self.speculative_draft_model_path
        return EngineConfig(
            target_path=resolve_model(self.model_path, "model_path"),
            drafter_path=resolve_model(drafter, "speculative_draft_model_path") if drafter else None,
            algorithm=Algorithm(self.speculative_algorithm or "NONE"),
            budget=self.speculative_ddtree_budget,
            topk=self.speculative_ddtree_topk,
            block_size=self.speculative_dflash_block_size,
            window_mode=WindowMode(self.speculative_draft_window_mode),
            window_size=self.speculative_draft_window_size,
            compact_draft_cache=self.speculative_draft_compact_cache,
            context_length=self.context_length,
            max_running_requests=self.max_running_requests,
            max_total_tokens=self.max_total_tokens,
            max_queued_requests=self.max_queued_requests,
            chunked_prefill_size=self.chunked_prefill_size,
            seed=self.random_seed,
        )


def resolve_model(name: str, field: str) -> Path:
    """A model folder; ``builtin:target`` and ``builtin:drafter`` are the shipped reference pair."""
    if name.startswith(BUILTIN):
        part = name.removeprefix(BUILTIN)
        if part not in ("target", "drafter"):
            raise EngineConfigError(field, f"no built-in model {part!r}: there are target and drafter")
        return Path(str(resources.files("dflash_engine") / "data" / "reference_pair" / part))
    path = Path(name).expanduser()
    if not path.is_dir():
        raise EngineConfigError(field, f"{name} is not a folder (models are never downloaded)")
    return path


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return value


def build_parser(prog: str = "python -m dflash_engine serve") -> argparse.ArgumentParser:
    """The parser; every option is SGLang's where SGLang (or an open DDTree pull request) has one."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Reference engine: DFlash, DDTree and drafter windows on a CPU, served as SGLang does.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model-path", "--model", default="builtin:target", help="target folder, or builtin:target")
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=30000, help="0: a free one, told in the log")
    add("--served-model-name", default=None)
    add("--speculative-algorithm", choices=["NONE", "DFLASH", "DDTREE"], default=None)
    add("--speculative-draft-model-path", default=None, help="drafter folder, or builtin:drafter")
    add("--speculative-dflash-block-size", "--speculative-num-draft-tokens", type=_positive, default=None)
    add("--speculative-ddtree-budget", type=_positive, default=None, help="tree nodes, root not counted")
    add("--speculative-ddtree-topk", type=_positive, default=None, help="candidates per position")
    add(
        "--speculative-draft-window-mode",
        choices=[mode.value for mode in WindowMode],
        default=WindowMode.DECLARED.value,
        help="declared: as the drafter's config says; ignored, clamped: the faults of SGLang before 0.5.14",
    )
    add("--speculative-draft-window-size", type=_positive, default=None)
    add("--speculative-draft-compact-cache", action="store_true")
    add("--context-length", type=_positive, default=DEFAULT_CONTEXT_LENGTH)
    add("--max-running-requests", type=_positive, default=8)
    add("--max-total-tokens", type=_positive, default=None)
    add("--max-queued-requests", type=_positive, default=None)
    add("--chunked-prefill-size", type=_positive, default=DEFAULT_CHUNKED_PREFILL)
    add("--decode-log-interval", type=_positive, default=40)
    add("--random-seed", type=int, default=0)
    add("--enable-metrics", action="store_true")
    add("--skip-server-warmup", action="store_true")
    return parser


def parse_args(argv: Sequence[str]) -> ServerArgs:
    """Parses and completes; argparse ends the process with status 2 on bad usage."""
    parser = build_parser()
    given = vars(parser.parse_args(argv))
    algorithm = given["speculative_algorithm"]
    if algorithm == "NONE":
        given["speculative_algorithm"] = algorithm = None
    if algorithm and not given["speculative_draft_model_path"]:
        parser.error(f"--speculative-algorithm {algorithm} needs --speculative-draft-model-path")
    if algorithm != "DDTREE" and (given["speculative_ddtree_budget"] or given["speculative_ddtree_topk"]):
        parser.error(
            "--speculative-ddtree-budget and --speculative-ddtree-topk need --speculative-algorithm DDTREE"
        )
    name = given["served_model_name"] or given["model_path"]
    given["served_model_name"] = name
    return ServerArgs(**given)
