"""The real SGLang server as a test target: one virtual environment per version, built by build.sh.

    with SglangRig("0.5.11").serve(tmp_path / "server.log", target=..., drafter=...) as server:
        server.generate([1, 2, 3], 16)

One server runs at a time on a machine: two on two cores are 5 to 60 times slower. A lock sees to that, also
between test runs. The rig judges behaviour, never speed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RIGS = Path(os.environ.get("DFLASH_RIGS", ROOT / ".rigs"))
LOCK = Path(tempfile.gettempdir()) / "dflash-sglang-cpu-rig.lock"
START_S = 300.0
"""An idle machine needs about 25 s from start to ready, a busy one far more."""


class StartFailedError(AssertionError):
    """The server ended, or did not get ready in time; carries the end of its log."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int
    log: Path

    def get(self, path: str, *, timeout: float = 60.0) -> Any:
        """The JSON answer of a GET request."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return json.load(answer)

    def post(self, path: str, body: object, *, timeout: float = 300.0) -> Any:
        """The JSON answer of a POST request, None when the answer is empty or plain text."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            data = answer.read()
        return json.loads(data) if data.lstrip().startswith((b"{", b"[")) else None

    def generate(
        self, prompts: Sequence[int] | Sequence[Sequence[int]], new_tokens: int, **sampling: Any
    ) -> Any:
        """Greedy /generate answer for token ids: a dict for one prompt, a list for several."""
        parameters = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True, **sampling}
        return self.post("/generate", {"input_ids": prompts, "sampling_params": parameters})

    def log_text(self) -> str:
        """Everything the server has logged so far."""
        return self.log.read_text(errors="replace")


class SglangRig:
    """One version of SGLang on the CPU."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.home = RIGS / f"sglang-{version}"
        self.python = self.home / "bin" / "python"

    @property
    def built(self) -> bool:
        """Whether build.sh has finished for this version."""
        return (self.home / ".built").is_file()

    def require(self) -> SglangRig:
        """Skips the test when the rig is not built (fails it when DFLASH_REQUIRE_RIGS=1, as CI sets)."""
        if not self.built:
            reason = f"SGLang {self.version} on the CPU is not built (make rig)"
            if os.environ.get("DFLASH_REQUIRE_RIGS") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        return self

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a server; the settings that SGLang needs here come with the interpreter."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "DFLASH_", "PYTHON"))}
        return kept | {"PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"} | dict(extra or {})

    def arguments(
        self,
        target: Path,
        port: int,
        *,
        drafter: Path | None = None,
        tokens: int = 8192,
        dtype: str = "float32",
        more: Sequence[str] = (),
    ) -> list[str]:
        """``launch_server``'s arguments for a CPU. ``tokens`` is the size of the KV pool."""
        arguments = ["--model-path", str(target), "--served-model-name", target.name]
        arguments += ["--device", "cpu", "--attention-backend", "torch_native"]
        arguments += ["--sampling-backend", "pytorch", "--grammar-backend", "none"]
        arguments += ["--mem-fraction-static", "0.1", "--max-total-tokens", str(tokens)]
        arguments += ["--disable-overlap-schedule", "--disable-cuda-graph", "--watchdog-timeout", "300"]
        arguments += ["--dtype", dtype, "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
        if _release(self.version) < (0, 5, 20):
            arguments += ["--disable-piecewise-cuda-graph"]
        if drafter is not None:
            arguments += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(drafter)]
            arguments += ["--speculative-draft-attention-backend", "triton"]
        return [*arguments, *more]

    @contextmanager
    def serve(
        self,
        log: Path,
        *,
        target: Path,
        drafter: Path | None = None,
        environment: Mapping[str, str] | None = None,
        tokens: int = 8192,
        dtype: str = "float32",
        more: Sequence[str] = (),
        timeout: float = START_S,
    ) -> Iterator[Server]:
        """Runs a server until the context is left. Raises StartFailedError with the end of its log."""
        self.require()
        with _one_at_a_time():
            port = _free_port()
            argv = [str(self.python), "-m", "sglang.launch_server"]
            argv += self.arguments(target, port, drafter=drafter, tokens=tokens, dtype=dtype, more=more)
            with log.open("wb") as out:
                process = subprocess.Popen(
                    argv,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=self.environment(environment),
                    start_new_session=True,
                    preexec_fn=_die_with_the_tests,
                )
            try:
                server = Server(f"http://127.0.0.1:{port}", process.pid, log)
                _wait_ready(process, server, timeout)
                yield server
            finally:
                _end(process)

    def refuses(self, log: Path, **kwargs: Any) -> str:
        """The log of a server that must not start; fails when it does."""
        try:
            with self.serve(log, **kwargs):
                pass
        except StartFailedError:
            return log.read_text(errors="replace")
        raise AssertionError(f"the server started, though it should have refused: {log}")

    def run(
        self, code: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 120.0
    ) -> str:
        """Standard output of a piece of Python in this environment."""
        done = subprocess.run(
            [str(self.python), "-c", code, *arguments],
            env=self.environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def overlay(self, folder: Path) -> Path:
        """A virtual environment of its own over this one, for tests that install; returns its python."""
        self.require()
        subprocess.run([str(self.python), "-m", "venv", "--without-pip", str(folder)], check=True)
        site = next(folder.glob("lib/python3*/site-packages"))
        mine = next(self.home.glob("lib/python3*/site-packages"))
        lines = [str(mine), *(mine / "dflash_rig.pth").read_text().splitlines()]
        (site / "dflash_rig.pth").write_text("\n".join(lines) + "\n")
        return folder / "bin" / "python"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def _die_with_the_tests() -> None:
    """In the child: a test run that is killed takes its server along, and that one SGLang's processes."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    """A port that is free now. SGLang derives others from it (up to 10,000 more), so not an ephemeral one."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 20000 and 32000")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wait_ready(process: subprocess.Popen[bytes], server: Server, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartFailedError(f"exit status {process.returncode}\n{server.log_text()[-6000:]}")
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.25)
    raise StartFailedError(f"not ready after {timeout:.0f} s\n{server.log_text()[-6000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the server and everything it started: all of it is in the process group made for it."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(15)
