"""Drafter windows on a real GPU: is the output unchanged, and what does a window that is ignored cost?

Starts the real SGLang server several times with the reference pair and asks each for the same greedy
continuations:

    none        no speculation
    ignored     DFLASH as this SGLang serves it by itself (DFLASH_SGLANG_WINDOWS=off)
    clamped     the same with SGLang's draft window flag at the drafter's window
    honoured    DFLASH with the plugin
    compact     the plugin and the draft window flag together

and writes one JSON file: accept length by context and mode, how many outputs equal those without
speculation, and for every one that differs the gap between the two tokens at the first difference (in bf16 a
near tie may fall either way).

    python scripts/h200/windows.py --out results.json                      on a GPU machine, SGLang importable
    python scripts/h200/windows.py --device cpu --python .rigs/sglang-0.5.11/bin/python --out cpu.json
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "backend" / "dflash_engine" / "data" / "reference_pair"
WINDOW = 256
"""The reference drafter's own window, in tokens."""

MODES = ("none", "ignored", "clamped", "honoured", "compact")
TIE = 0.15
"""Difference of two logits that bf16 may turn round: two of its steps (1/16) at a size of 8 to 16."""


@dataclass(frozen=True)
class Setting:
    """How servers are run: on what, with which interpreter, where their logs go."""

    device: str
    python: str
    release: str
    dtype: str
    logs: Path
    plugin: Path
    pool: int
    graph_batch: int


def main() -> int:
    """Runs every mode and writes the results. Exit status 1 when an output differs by more than a tie."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        plugin = Path(scratch) / "plugin"
        unpack_plugin(plugin)
        logs = Path(options.logs or scratch)
        logs.mkdir(parents=True, exist_ok=True)
        code = "import sys, importlib.metadata as m; sys.stdout.write(m.version('sglang'))"
        release = subprocess.check_output([options.python, "-c", code], text=True).split()[-1]
        dtype = "bfloat16" if options.device == "cuda" else "float32"
        setting = Setting(
            options.device, options.python, release, dtype, logs, plugin, options.pool, options.graph_batch
        )
        prompts = load_prompts(options.contexts, options.prompts)
        # The server without speculation runs last: it also prices the differences found by then.
        order = sorted(options.modes, key=lambda mode: mode == "none")
        runs: dict[str, Any] = {}
        for mode in order:
            runs[mode] = measure(mode, setting, prompts, options.new_tokens, runs if mode == "none" else {})
            Path(options.out).write_text(
                json.dumps(summary(setting, options, prompts, runs), indent=1) + "\n"
            )
            print(mode, json.dumps(runs[mode]["contexts"]), flush=True)
    result = json.loads(Path(options.out).read_text())
    print(table(result), flush=True)
    return 1 if any(mode["unexplained"] for mode in result["equality"].values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has SGLang")
    parser.add_argument("--out", required=True, help="JSON file")
    parser.add_argument("--logs", help="folder for server logs")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096, 8000])
    parser.add_argument("--prompts", type=int, default=8, help="prompts per context")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--pool", type=int, default=131072, help="tokens in the KV pool")
    parser.add_argument("--graph-batch", type=int, default=8, help="largest batch captured as a CUDA graph")
    return parser.parse_args()


def unpack_plugin(folder: Path) -> None:
    """Builds the plugin's wheel and unpacks it, as an installation would lie in site-packages."""
    sys.path.insert(0, str(ROOT / "backend"))
    source = ROOT / "backend" / "dflash_backend" / "plugin_install" / "wheel.py"
    spec = importlib.util.spec_from_file_location("plugin_wheel", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plugin_wheel"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    zipfile.ZipFile(io.BytesIO(module.build().data)).extractall(folder)


def load_prompts(contexts: Sequence[int], count: int) -> dict[int, list[list[int]]]:
    """Prompts as token ids, by context. Beyond the longest stored ones, two of those are joined and cut."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json"))
    stored: dict[int, list[list[int]]] = {}
    for prompt in json.loads((PAIR / "prompts.json").read_text(encoding="utf-8"))["prompts"]:
        ids = tokenizer.encode(prompt["text"], add_special_tokens=False).ids
        stored.setdefault(prompt["context_tokens"], []).append(ids)
    longest = stored[max(stored)]
    found: dict[int, list[list[int]]] = {}
    for context in contexts:
        if context in stored:
            found[context] = stored[context][:count]
            continue
        joined = [a + b for a in longest for b in longest if a is not b]
        found[context] = [ids[:context] for ids in joined if len(ids) >= context][:count]
    return found


def measure(
    mode: str, setting: Setting, prompts: dict[int, list[list[int]]], new_tokens: int, others: dict[str, Any]
) -> dict[str, Any]:
    """One server: every prompt of a context at once, then the same again over the radix cache."""
    run: dict[str, Any] = {"contexts": {}, "outputs": {}}
    started = time.monotonic()
    with serve(mode, setting) as (url, log):
        run["start_s"] = round(time.monotonic() - started, 1)
        for context, group in prompts.items():
            with ThreadPoolExecutor(len(group)) as pool:
                began = time.monotonic()
                answers = list(pool.map(lambda ids: generate(url, ids, new_tokens), group))
                took = time.monotonic() - began
                again = list(pool.map(lambda ids: generate(url, ids, new_tokens), group))
            tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
            steps = sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers)
            run["outputs"][context] = [answer["output_ids"] for answer in answers]
            run["contexts"][context] = {
                "prompts": len(group),
                "tokens": tokens,
                "verify_steps": steps or None,
                "accept_length": round(tokens / steps, 3) if steps else None,
                "tokens_per_s": round(tokens / took, 1),
                "again_equal": sum(
                    a["output_ids"] == b["output_ids"] for a, b in zip(answers, again, strict=True)
                ),
                "again_cached_tokens": sum(answer["meta_info"].get("cached_tokens", 0) for answer in again),
            }
        if mode == "none":
            run["differences"] = {
                other: differences(url, prompts, runs["outputs"], run["outputs"])
                for other, runs in others.items()
            }
        states = get(url, "/server_info").get("internal_states") or [{}]
        run["plugin"] = states[0].get("dflash_sglang")
        text = log.read_text(errors="replace")
    graphs = re.findall(r"Decode batch.*cuda graph: (True|False)", text)
    run["decode_lines_with_cuda_graph"] = graphs.count("True")
    run["decode_lines_without_cuda_graph"] = graphs.count("False")
    run["draft_runner_line"] = next(
        (x for x in text.splitlines() if "Initialized DFLASH draft runner" in x), None
    )
    return run


def differences(
    url: str,
    prompts: dict[int, list[list[int]]],
    outputs: dict[int, list[list[int]]],
    reference: dict[int, list[list[int]]],
) -> list[dict[str, Any]]:
    """Each output that is not the reference, with the gap of the two tokens where they first differ."""
    found = []
    for context, group in prompts.items():
        for number, ids in enumerate(group):
            ours, theirs = outputs[context][number], reference[context][number]
            if ours == theirs:
                continue
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            body = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
            answer = post(
                url,
                "/generate",
                {
                    "input_ids": ids + theirs[:at],
                    "sampling_params": body,
                    "return_logprob": True,
                    "top_logprobs_num": 8,
                },
            )
            top = {token: logprob for logprob, token, *_ in answer["meta_info"]["output_top_logprobs"][0]}
            gap = abs(top[theirs[at]] - top[ours[at]]) if {ours[at], theirs[at]} <= top.keys() else None
            found.append({"context": context, "prompt": number, "at": at, "gap": gap and round(gap, 4)})
    return found


@contextmanager
def serve(mode: str, setting: Setting) -> Iterator[tuple[str, Path]]:
    """A server in one mode until the context is left."""
    port = random.randrange(20000, 32000)
    arguments = ["--model-path", str(PAIR / "target"), "--dtype", setting.dtype, "--port", str(port)]
    arguments += ["--sampling-backend", "pytorch", "--grammar-backend", "none", "--decode-log-interval", "5"]
    arguments += ["--max-total-tokens", str(setting.pool), "--disable-piecewise-cuda-graph"]
    if setting.device == "cuda":
        arguments += ["--attention-backend", "triton", "--mem-fraction-static", "0.3"]
        arguments += ["--cuda-graph-max-bs", str(setting.graph_batch)]
    else:
        arguments += [
            "--device",
            "cpu",
            "--attention-backend",
            "torch_native",
            "--mem-fraction-static",
            "0.1",
        ]
        arguments += ["--disable-cuda-graph", "--disable-overlap-schedule"]
    if mode != "none":
        arguments += [
            "--speculative-algorithm",
            "DFLASH",
            "--speculative-draft-model-path",
            str(PAIR / "drafter"),
        ]
        arguments += ["--speculative-draft-attention-backend", "triton"]
    if mode in ("clamped", "compact"):
        old = setting.release.startswith("0.5.11")
        flag = "--speculative-dflash-draft-window-size" if old else "--speculative-draft-window-size"
        arguments += [flag, str(WINDOW)]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1")
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(setting.plugin), os.environ.get("PYTHONPATH")])
    )
    environment["DFLASH_SGLANG_WINDOWS"] = "off" if mode in ("ignored", "clamped") else "on"
    log = setting.logs / f"{setting.release}-{mode}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [setting.python, "-m", "sglang.launch_server", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log)
        yield url, log
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url + "/health", timeout=5):
            return
        time.sleep(0.3)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")


def generate(url: str, ids: list[int], new_tokens: int) -> Any:
    """A greedy continuation of exactly ``new_tokens`` tokens."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return post(url, "/generate", {"input_ids": ids, "sampling_params": sampling})


def post(url: str, path: str, body: object) -> Any:
    """The JSON answer of a POST request."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def get(url: str, path: str) -> Any:
    """The JSON answer of a GET request."""
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.load(answer)


def summary(
    setting: Setting, options: argparse.Namespace, prompts: dict[int, list[list[int]]], runs: dict[str, Any]
) -> dict[str, Any]:
    """The result file: everything but the outputs themselves."""
    equality = {}
    total = sum(len(group) for group in prompts.values())
    for mode, found in runs.get("none", {}).get("differences", {}).items():
        ties = [x for x in found if x["gap"] is not None and x["gap"] <= TIE]
        equality[mode] = {
            "outputs": total,
            "equal": total - len(found),
            "ties": len(ties),
            "unexplained": len(found) - len(ties),
            "differences": found,
        }
    return {
        "schema": 1,
        "sglang": setting.release,
        "device": setting.device,
        "gpu": _gpu() if setting.device == "cuda" else None,
        "dtype": setting.dtype,
        "new_tokens": options.new_tokens,
        "window": WINDOW,
        "tie_limit": TIE,
        "equality": equality,
        "modes": {mode: {k: v for k, v in run.items() if k != "outputs"} for mode, run in runs.items()},
    }


def _gpu() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(query, text=True).strip()
    return None


def table(result: dict[str, Any]) -> str:
    """Accept length by context and mode, as text."""
    contexts = list(next(iter(result["modes"].values()))["contexts"])
    modes = [mode for mode in MODES if mode in result["modes"] and mode != "none"]
    lines = ["context  " + "  ".join(f"{mode:>9}" for mode in modes)]
    for context in contexts:
        values = [result["modes"][mode]["contexts"][context]["accept_length"] for mode in modes]
        lines.append(f"{context:>7}  " + "  ".join(f"{value:>9.2f}" for value in values))
    for mode, found in result["equality"].items():
        lines.append(
            f"{mode}: {found['equal']} of {found['outputs']} outputs equal those without speculation, "
            f"{found['ties']} differ at a near tie, {found['unexplained']} otherwise"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
