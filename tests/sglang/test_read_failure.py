"""Failed starts explained; the texts are what SGLang, torch, uvicorn, argparse and the shell print."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.sglang.failure import explain_failure

DATA = Path(__file__).parent.parent / "data"
TRACE = """[2026-11-30 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 3000, in run_scheduler_process
    scheduler = Scheduler(
  File "/opt/sglang/srt/model_executor/model_runner.py", line 700, in init_memory_pool
    raise RuntimeError(
"""


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        (
            TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.30 GiB. GPU 0 has a "
            "total capacity of 94.97 GiB of which 1.10 GiB is free.",
            "out-of-memory",
            "2.30 GiB",
        ),
        (
            TRACE + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "out-of-memory",
            "KV pool",
        ),
        (
            ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
            "[errno 98] address already in use"),
            "port-in-use",
            "30000",
        ),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:31007')", "port-in-use", "31007"),
        (
            ("OSError: /models/kimi-k2 is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'"),
            "no-model",
            "/models/kimi-k2",
        ),
        (
            ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/models/draft'. Use `repo_type` argument if needed."),
            "no-model",
            "/models/draft",
        ),
        (
            ("usage: launch_server.py [-h] --model-path MODEL_PATH\n"
            "launch_server.py: error: unrecognized arguments: --speculative-dflash-draft-window-size 2048"),
            "unknown-option",
            "--speculative-dflash-draft-window-size 2048",
        ),
        (
            "launch_server.py: error: argument --speculative-algorithm: invalid choice: 'DDTREE'",
            "bad-option",
            "invalid choice: 'DDTREE'",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
            "driver",
            "driver",
        ),
        (
            ("Error 803: system has unsupported display driver / cuda driver combination: "
            "CUDA driver version is insufficient for CUDA runtime version"),
            "driver",
            "driver",
        ),
        ("RuntimeError: No CUDA GPUs are available", "no-gpu", "no GPU"),
        ("/usr/bin/python3: No module named sglang", "missing-module", "sglang"),
        ("ModuleNotFoundError: No module named 'sgl_kernel'", "missing-module", "sgl_kernel"),
        (
            "ImportError: /opt/x.so: undefined symbol: _ZN3c105ErrorC2",
            "library",
            "undefined symbol",
        ),
        ("RuntimeError: plugin dflash_sglang failed to load: version 0.5.9", "plugin", "plugin"),
        ("OSError: [Errno 28] No space left on device", "disk-full", "disk"),
        ("bash: line 1: /opt/bin/python3: No such file or directory", "no-interpreter", "/opt/bin/python3"),
        (
            "ValueError: DFLASH sliding_attention layers require config.sliding_window.",
            "draft-config",
            "require config.sliding_window",
        ),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "gpu-fault",
            "illegal memory access",
        ),
        (TRACE + "AssertionError: tp_size must divide heads", "assertion", "tp_size must divide heads"),
        (TRACE + "KeyError: 'model.layers.0'", "exception", "KeyError: 'model.layers.0'"),
    ],
)  # fmt: skip
def test_reasons(text: str, kind: str, part: str) -> None:
    failure = explain_failure(text.split("\n"), exit_code=1)
    assert failure is not None
    assert failure.kind == kind
    assert part in failure.text
    assert failure.next_step
    assert failure.lines
    assert any(line in text for line in failure.lines)


def test_the_cause_wins_over_what_follows_from_it() -> None:
    failure = explain_failure(
        [
            *TRACE.split("\n"),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
            "[2026-11-30 10:00:01] Received sigquit from a child process. It usually means the child failed.",
            "AssertionError: server did not start",
        ],
        exit_code=137,
    )
    assert failure is not None
    assert failure.kind == "out-of-memory"


def test_killed_without_a_word() -> None:
    failure = explain_failure(["[2026-11-30 10:00:00] Load weight begin. avail mem=100 GB"], exit_code=137)
    assert failure is not None
    assert (failure.kind, "137" in failure.text) == ("killed", True)
    assert explain_failure([], exit_code=-9) is not None


def test_an_orderly_stop_is_no_failure_of_the_machine() -> None:
    log = (DATA / "captures/sglang-0.5.14-cpu-dflash/server.log").read_text(encoding="utf-8").split("\n")
    failure = explain_failure(log, exit_code=137)
    assert failure is not None
    assert failure.kind == "stopped"


@pytest.mark.parametrize("path", sorted(DATA.glob("captures/*/*.log")), ids=lambda p: p.parent.name + p.stem)
def test_healthy_logs_hold_nothing_that_looks_like_a_reason(path: Path) -> None:
    assert explain_failure(path.read_text(encoding="utf-8").split("\n")) is None


def test_nothing_is_invented() -> None:
    assert explain_failure(["all is well"], exit_code=1) is None
    assert explain_failure([]) is None


def test_secrets_in_the_evidence_are_removed() -> None:
    failure = explain_failure(
        ["launch_server.py: error: unrecognized arguments: --api-key abcd-secret-99 --foo"]
    )
    assert failure is not None
    assert "abcd-secret" not in repr(failure)


@given(st.lists(st.text(max_size=120), max_size=30), st.none() | st.integers(-70, 300))
def test_no_log_raises(lines: list[str], code: int | None) -> None:
    failure = explain_failure(lines, exit_code=code)
    assert failure is None or (failure.text and failure.next_step)
