"""``inspect``: every sample and capture is recognised; bad files are refused in words; no secret gets out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_backend.core.errors import ConsoleError, UsageError
from dflash_backend.sglang.decode import FormatError
from dflash_backend.sglang.inspect import KINDS, InspectReport, inspect_file

DATA = Path(__file__).parent.parent / "data"
KIND_OF = {
    "01": "log", "02": "log", "04": "log", "06": "log", "07": "log", "08": "log", "10": "log", "13": "log",
    "14": "log", "16": "log", "18": "metrics", "20": "metrics", "21": "metrics", "23": "server-info",
    "24": "server-info", "26": "nvidia-smi", "28": "nvidia-smi", "30": "nvidia-smi", "32": "nvidia-smi",
    "33": "nvidia-smi", "34": "nvidia-smi", "35": "nvidia-smi", "37": "bench", "38": "log",
}  # fmt: skip
CAPTURED = {
    "bench_serving.jsonl": "bench", "bench_serving.stdout.txt": "bench", "generate-batch4.json": "generate",
    "generate-stream.txt": "generate", "get_load.json": "loads", "metrics-idle.txt": "metrics",
    "metrics-load.txt": "metrics", "model_info.json": "model-info", "server.log": "log", "ar.log": "log",
    "dflash.log": "log", "server_info.json": "server-info", "v1-completions-stream.txt": "generate",
    "v1-loads-load.json": "loads", "v1-loads.json": "loads", "v1-models.json": "models",
    "health_generate.json": "empty",
}  # fmt: skip


def document(report: InspectReport) -> dict[str, Any]:
    # allow_nan=False: what is printed must be JSON.
    return json.loads(json.dumps(report.to_json(), allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", sorted(DATA.glob("samples/*")), ids=lambda p: p.name)
def test_samples(path: Path) -> None:
    report = document(inspect_file(path))
    assert report["kind"] == KIND_OF[path.name[:2]]
    assert report["schema"] == 1
    assert report["summary"]
    if report["kind"] == "nvidia-smi":
        assert report["rows"]


@pytest.mark.parametrize("path", sorted(DATA.glob("captures/*/*")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_captures(path: Path) -> None:
    report = document(inspect_file(path))
    expected = CAPTURED[path.name]
    if path.parent.name == "sglang-0.5.23-cpu" and path.name == "get_load.json":
        expected = "json"  # {"detail": "Not Found"}
        assert "Not Found" in report["notes"][0]
    assert report["kind"] == expected


def test_log_of_a_gpu_run() -> None:
    summary = document(inspect_file(DATA / "captures/sglang-0.5.11-h200/dflash.log"))["summary"]
    assert (summary["decode_lines"], summary["prefill_lines"], summary["ready"]) == (14, 3, True)
    assert summary["decode_tok_s"]["max"] == 254.46
    assert summary["accept_length"]["median"] == 1.0
    assert summary["startup"]["draft_runner"]["window"] == 256
    assert summary["settings"]["speculative_algorithm"] == "DFLASH"
    assert summary["settings"]["speculative_dflash_draft_window_size"] == 256
    assert summary["settings"]["disable_cuda_graph"] is False
    assert summary["failure"] is None
    assert summary["graph_share"] == 1.0
    rows = document(inspect_file(DATA / "captures/sglang-0.5.11-h200/dflash.log"))["rows"]
    assert [row["batch"] for row in rows[:3]] == ["prefill", "prefill", "decode"]
    assert rows[2]["gen_throughput"] == 2.49


def test_log_of_a_failed_start(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "[2026-11-30 10:00:00] Load weight begin. avail mem=79 GB\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.30 GiB.\n"
    )
    summary = document(inspect_file(log))["summary"]
    assert summary["failure"]["kind"] == "out-of-memory"
    assert (summary["stage"], summary["ready"]) == ("weights", False)


def test_log_of_a_server_that_fell_over_while_serving(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    decode = (
        "[2026-11-30 10:00:00] Decode batch, #running-req: 1, gen throughput (token/s): 5.0, #queue-req: 0\n"
    )
    log.write_text(decode + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
    assert document(inspect_file(log))["summary"]["failure"]["kind"] == "gpu-fault"
    log.write_text("ValueError: something early\n" + decode)
    assert document(inspect_file(log))["summary"]["failure"] is None


def test_stream_counts_tokens_not_chunks() -> None:
    openai = DATA / "captures/sglang-0.5.11-cpu-dflash/v1-completions-stream.txt"
    summary = document(inspect_file(openai))["summary"]
    assert (summary["form"], summary["chunks"], summary["done"]) == ("openai", 25, True)
    assert summary["request"]["completion_tokens"] == 24
    native = document(inspect_file(DATA / "captures/sglang-0.5.14-cpu-dflash/generate-stream.txt"))["summary"]
    assert (native["form"], native["request"]["spec"]["verify_ct"]) == ("native", 23)


def test_kind_can_be_forced_and_is_then_checked(tmp_path: Path) -> None:
    assert inspect_file(DATA / "samples/38_logcompare_eagle_dflash.txt", "log").kind == "log"
    for kind, name in (("metrics", "01_decode_plain.txt"), ("server-info", "18_metrics_sglang_2025.prom")):
        with pytest.raises(FormatError) as caught:
            inspect_file(DATA / "samples" / name, kind)
        assert caught.value.where.endswith(name)
        assert caught.value.next_step
    with pytest.raises(UsageError, match="no such kind"):
        inspect_file(DATA / "README.md", "picture")


def test_draft_config(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "block_size": 8,'
        ' "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}'
    )
    report = document(inspect_file(config))
    assert (report["kind"], report["summary"]["windows"]) == ("draft-config", [64, None])


def test_refusals(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.touch()
    binary.write_bytes(os.urandom(5000) + b"\0" * 5000)
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    cases = [
        (tmp_path, "folder"),
        (tmp_path / "none", "no such file"),
        (binary, "binary"),
        (fifo, "no regular file"),
    ]
    for path, text in cases:
        with pytest.raises(UsageError, match=text) as caught:
            inspect_file(path)
        assert caught.value.next_step
        assert caught.value.where
    assert inspect_file(empty).kind == "empty"
    with pytest.raises(FormatError, match="empty"):
        inspect_file(empty, "log")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "locked"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        inspect_file(path)


def test_a_huge_line_and_a_huge_file_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    line = (
        b"[2026-11-30 10:00:00] Decode batch, #running-req: 1, gen throughput (token/s): 5.0, #queue-req: 0\n"
    )
    with log.open("wb") as stream:
        stream.write(line + b"x" * 3_000_000 + b"\n" + line * 3000)
    report = document(inspect_file(log))
    assert report["summary"]["decode_lines"] == 3001
    assert len(report["rows"]) == 1000
    large = tmp_path / "large.json"
    large.write_bytes(b'{"internal_states": [' + b"1, " * (24 * 1024 * 1024))
    with pytest.raises(UsageError, match="too much"):
        inspect_file(large)


SECRET = "zq7-very-secret-value"
PLACES = [
    '{{"model_path": "m", "port": 1, "api_key": "{s}"}}',
    '{{"model_path": "m", "port": 1, "extra": {{"admin_api_key": ["{s}"]}}}}',
    '{{"completed": 1, "duration": 1, "output_throughput": 1, "server_info": {{"api_key": "{s}"}}}}',
    '{{"architectures": ["DFlashDraftModel"], "block_size": 8, "hf_token": "{s}"}}',
    '{{"anything": {{"password": "{s}"}}}}',
    "password = {s}",
    "admin-api-key: {s}",
    "[2026-11-30 10:00:00] server_args=ServerArgs(model_path='m', api_key='{s}', admin_api_key='{s}')",
    "[2026-11-30 10:00:00] launch: python -m sglang.launch_server --api-key {s} --port 1",
    "launch_server.py: error: unrecognized arguments: --api-key {s}",
    "HF_TOKEN={s}",
    "Authorization: Bearer {s}",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("around", ["", "[2026-11-30 10:00:01] block size mismatch\n", "some text\n"])
def test_secrets_never_reach_the_report(tmp_path: Path, place: str, around: str) -> None:
    path = tmp_path / "capture"
    path.write_text(around + place.format(s=SECRET) + "\n")
    assert SECRET not in json.dumps(inspect_file(path).to_json())
    for kind in KINDS:
        try:
            shown = json.dumps(inspect_file(path, kind).to_json())
        except ConsoleError as error:
            shown = str(error)
        assert SECRET not in shown


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    st.binary(min_size=1, max_size=300)
    | st.text(min_size=1, max_size=200).map(lambda t: t.encode("utf-8", "replace")),
    st.sampled_from([None, *KINDS]),
    st.sampled_from([b"", b"{", b"[", b"data: ", b"sglang:num_running_reqs ", b"Decode batch, ", b"GPU 0: "]),
)
def test_any_file_is_read_or_refused(tmp_path: Path, noise: bytes, kind: str | None, start: bytes) -> None:
    path = tmp_path / "noise"
    path.write_bytes(start + noise)
    refused = None
    try:
        json.dumps(inspect_file(path, kind).to_json(), allow_nan=False)
    except ConsoleError as error:
        refused = error
    assert refused is None or (refused.next_step and "\x1b" not in str(refused))
