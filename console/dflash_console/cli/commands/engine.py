"""``engine``: the reference engine on this machine, as a process of its own."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from dflash_backend.core.errors import FailedError
from dflash_console.cli.command import Context, Group, Leaf

NEEDED = ("numpy", "safetensors", "tokenizers")


def _hand_over(part: str, args: argparse.Namespace) -> int:
    """Becomes the engine: its exit code, its signals and its output are this command's."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FailedError(
            f"the reference engine needs {', '.join(missing)}, which this Python does not have",
            where=sys.executable,
            unchanged="nothing was started",
            next_step="pip install 'dflash-sglang-console[engine]'",
        )
    sys.stdout.flush()
    words = [sys.executable, "-m", "dflash_engine", part, *args.rest]
    os.execv(sys.executable, words)  # noqa: S606 - an argument list of our own


def serve(args: argparse.Namespace, context: Context) -> int:
    """Serves SGLang's HTTP surface."""
    return _hand_over("serve", args)


def verify(args: argparse.Namespace, context: Context) -> int:
    """Greedy equality and accept length per arm."""
    return _hand_over("verify", args)


COMMAND = Group(
    help="the reference engine on this machine",
    commands={
        "serve": Leaf(help="serve SGLang's HTTP surface", run=serve, passthrough=True),
        "verify": Leaf(help="check every arm against plain decoding", run=verify, passthrough=True),
    },
)
