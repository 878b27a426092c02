"""The measurement: what it asks, how it judges, and what it makes of the reference engine's window modes."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.audit.measure import measure
from dflash_backend.audit.measured import has_gap, with_measurement
from dflash_backend.audit.measurement import Measurement, Progress, interval, is_loop, judge
from dflash_backend.audit.report import AuditReport, Verdict
from dflash_backend.audit.texts import corpus
from dflash_backend.core.errors import ConsoleError, FailedError, UnreachableError, UsageError
from dflash_backend.sglang.meta_info import RequestMeta, SpecStats
from rigs.sshd import free_port

TOKENS = {"far below": 717, "below": 1536, "beyond": 4096, "far beyond": 8192}
NAMES = tuple(TOKENS)


def answer(accept: float, tokens: int = 100, text: str = "fine") -> tuple[RequestMeta, str]:
    verify = max(1, round(480 / accept))
    spec = SpecStats(completion_tokens=480, verify_ct=verify, accept_length=480 / verify)
    return RequestMeta(prompt_tokens=tokens, spec=spec), text


def answers(shape: Mapping[str, float], *, pairs: int = 12, spread: float = 0.15) -> Measurement:
    """Pairs that differ among each other as prompts do, with a shape over the context lengths."""
    made = {}
    for pair in range(pairs):
        own = 1 + spread * ((pair * 7) % 5 - 2) / 2
        for name, level in shape.items():
            made[pair, name] = answer(max(1.0, level * own), TOKENS[name])
    return judge(2048, list(range(pairs)), tuple(shape), made)


@pytest.mark.parametrize(
    ("levels", "shape"),
    [
        ((3.6, 3.5, 3.5, 3.4), "holds"),
        ((3.6, 3.5, 4.1, 4.3), "holds"),
        ((3.6, 3.5, 1.3, 1.1), "falls"),
        ((6.0, 5.8, 3.2, 2.9), "falls"),
        ((1.1, 1.12, 1.1, 1.05), "hardly accepted"),
        ((4.0, 3.0, 2.3, 1.7), "not distinguishable"),  # falls steadily, the window is no edge
        ((3.5, 3.4, 2.6, 2.5), "not distinguishable"),  # a little less: may be anything
        ((1.6, 1.66, 1.3, 1.18), "falls"),  # a tree finds some drafts also without causality
    ],
)
def test_the_shape_is_judged_within_the_server(levels: tuple[float, ...], shape: str) -> None:
    measured = answers(dict(zip(NAMES, levels, strict=True)))
    assert measured.shape == shape, (measured.ratio, measured.control)
    assert len(measured.points) == 4
    if shape == "falls":
        assert "the window is not applied" in measured.text
    if shape == "hardly accepted":
        assert "length cannot tell why" in measured.text


def test_one_context_beyond_the_window_is_enough_and_few_pairs_are_not() -> None:
    assert answers({"far below": 3.5, "below": 3.5, "beyond": 1.2}).shape == "falls"
    few = answers({"far below": 3.5, "below": 3.5, "beyond": 1.2}, pairs=4)
    assert few.shape == "not distinguishable"
    assert "too few" in few.text


def test_a_wide_spread_is_not_taken_for_an_answer() -> None:
    made = {}
    for pair, beyond in enumerate((3.4, 1.1, 3.3, 1.2, 3.5, 1.1)):
        for name, level in zip(NAMES[:3], (3.5, 3.4, beyond), strict=True):
            made[pair, name] = answer(level, TOKENS[name])
    assert judge(256, list(range(6)), NAMES[:3], made).shape == "not distinguishable"


def test_answers_that_end_in_a_loop_are_left_out() -> None:
    assert is_loop("def f():\n" * 30)
    assert is_loop("x" * 200)
    assert not is_loop(corpus()[:4000])
    assert not is_loop("short")
    made = {}
    for pair in range(9):
        for name in NAMES[:3]:
            looped = pair in (2, 5) and name == "beyond"
            made[pair, name] = answer(9.0 if looped else 3.0, text="a b " * 60 if looped else "fine")
    measured = judge(256, list(range(9)), NAMES[:3], made)
    assert (measured.pairs, measured.dropped, measured.shape) == (7, 2, "holds")
    assert max(point.accept_length.mean for point in measured.points) < 3.1


def test_a_server_that_does_not_speculate_is_said_to_be_one() -> None:
    made = {(0, name): (RequestMeta(prompt_tokens=5), "x") for name in NAMES}
    with pytest.raises(UsageError, match="does not speculate"):
        judge(256, [0], NAMES, made)


@given(st.lists(st.floats(1.0, 16.0), min_size=2, max_size=20))
def test_an_interval_holds_its_mean_and_is_always_the_same(values: list[float]) -> None:
    first = interval(values)
    assert first == interval(values)
    assert min(values) - 1e-9 <= first.low <= first.high <= max(values) + 1e-9
    assert min(values) - 1e-9 <= first.mean <= max(values) + 1e-9


@pytest.mark.parametrize(
    ("verdict", "levels", "code", "severity"),
    [
        (Verdict.ENFORCED, (3.5, 3.5, 3.5), "measured", "ok"),
        (Verdict.IGNORED, (3.5, 3.5, 1.1), "measured", "gap"),
        (Verdict.ENFORCED, (3.5, 3.5, 1.1), "measured-contradicts", "gap"),
        (Verdict.IGNORED, (3.5, 3.5, 3.5), "measured-contradicts", "warning"),
        (Verdict.ENFORCED, (1.1, 1.1, 1.1), "measured-contradicts", "warning"),
        (Verdict.CLAMPED, (1.1, 1.1, 1.1), "measured", "info"),
        (Verdict.CLAMPED, (1.6, 1.6, 1.6), "measured", "ok"),
        (Verdict.UNKNOWN, (3.5, 3.5, 1.1), "measured", "gap"),
    ],
)
def test_it_stands_beside_the_other_evidence(
    verdict: Verdict, levels: tuple[float, ...], code: str, severity: str
) -> None:
    measured = answers(dict(zip(NAMES[:3], levels, strict=True)))
    report = with_measurement(AuditReport(verdict=verdict, subject="s"), measured)
    assert report.verdict is verdict, "a measurement never changes what the source says"
    (finding,) = report.findings
    assert (finding.code, finding.severity) == (code, severity)
    assert {proof.strength for proof in finding.evidence} == {"measured"}
    assert with_measurement(report, measured).findings == report.findings, "the newest one replaces"
    assert has_gap(report) == (verdict.is_gap or severity == "gap")


# The requests ------------------------------------------------------------------------------------------


@asynccontextmanager
async def server(handler: Callable[[dict[str, Any]], Any]) -> AsyncIterator[str]:
    async def generate(request: web.Request) -> web.Response:
        made = handler(await request.json())
        return made if isinstance(made, web.Response) else web.json_response(made)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def run(url: str, **options: Any) -> tuple[list[Progress], Measurement]:
    steps: list[Progress] = []
    async with aiohttp.ClientSession() as session:
        async for item in measure(session, url, **options):
            if isinstance(item, Measurement):
                return steps, item
            steps.append(item)
    raise AssertionError("no measurement came")


async def test_a_text_ends_at_the_same_place_in_every_context() -> None:
    asked: list[dict[str, Any]] = []

    def handler(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        tokens = len(body["text"]) // 3
        return {
            "text": "an answer",
            "meta_info": {"prompt_tokens": tokens, "completion_tokens": 48, "spec_verify_ct": 16},
        }

    async with server(handler) as url:
        steps, measured = await run(url, window=512, context_limit=8192)
    assert measured.shape == "holds"
    assert (steps[0].done, steps[-1].done, steps[-1].total) == (0, 48, 48)
    prompts = [body for body in asked if body["sampling_params"]["max_new_tokens"] > 1]
    assert all(body["sampling_params"]["temperature"] == 0 for body in prompts)
    ends: dict[str, list[int]] = {}
    for body in prompts:
        ends.setdefault(body["text"][-120:], []).append(len(body["text"]) // 3)
    assert len(ends) == 12
    for lengths in ends.values():
        short, below, beyond, far = sorted(lengths)
        assert below + 48 <= 512, "below the window with its answer"
        assert short < below / 1.5
        assert beyond > 512 * 1.6
        assert far > 512 * 3.2


@pytest.mark.parametrize(
    ("window", "limit", "allowed"), [(2048, 131_072, True), (4096, 4096, False), (2048, 2000, False),
                                     (256, 460, True), (16, 8192, False), (1_000_000, None, False)]
)  # fmt: skip
async def test_a_window_that_cannot_be_reached_is_refused(
    window: int, limit: int | None, allowed: bool
) -> None:
    def handler(body: dict[str, Any]) -> dict[str, Any]:
        meta = {"prompt_tokens": len(body["text"]) // 3, "completion_tokens": 48, "spec_verify_ct": 16}
        return {"text": "an answer", "meta_info": meta}

    async with server(handler) as url:
        if allowed:
            assert (await run(url, window=window, context_limit=limit))[1].shape == "holds"
        else:
            with pytest.raises(UsageError, match="cannot be measured here"):
                await run(url, window=window, context_limit=limit)


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (web.Response(status=401, text="Unauthorized sk-abcdefghijklmnopqrstuvwx"), FailedError, "401"),
        (web.Response(text="<html>\x1b[31m"), FailedError, "no JSON"),
        ([], FailedError, "how long a prompt"),
        ({"text": 7, "meta_info": {"prompt_tokens": "many"}}, FailedError, "how long a prompt"),
        ({"text": "", "meta_info": {"prompt_tokens": 700}}, UsageError, "does not speculate"),
    ],
)
async def test_what_a_server_answers_instead(reply: Any, error: type[ConsoleError], words: str) -> None:
    def handler(body: dict[str, Any]) -> Any:
        if isinstance(reply, web.Response):
            return web.Response(status=reply.status, text=reply.text)
        return reply

    async with server(handler) as url:
        with pytest.raises(error) as raised:
            await run(url, window=256)
    assert words in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert "abcdefghijklmnop" not in str(raised.value)


async def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError):
        await run(f"http://127.0.0.1:{free_port()}", window=256)


# The reference engine ----------------------------------------------------------------------------------


@asynccontextmanager
async def engine(tmp_path: Path, arm: str) -> AsyncIterator[str]:
    drafter, mode = "builtin:drafter", arm
    if arm == "dropped":
        # The engine has no mode for it: a copy of the drafter that declares a window which is never reached.
        source = resources.files("dflash_engine") / "data" / "reference_pair" / "drafter"
        folder = tmp_path / "drafter"
        shutil.copytree(str(source), folder)
        config = json.loads((folder / "config.json").read_text())
        config["sliding_window"] = 16_000
        (folder / "config.json").write_text(json.dumps(config))
        drafter, mode = str(folder), "declared"
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dflash_engine", "serve", "--port", str(port),
        "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", drafter,
        "--speculative-draft-window-mode", mode,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            while True:
                try:
                    async with session.get(url + "/health") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    assert process.returncode is None
                await asyncio.sleep(0.05)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arm", "shape"),
    [
        ("declared", "holds"),
        ("dropped", "falls"),
        ("ignored", "hardly accepted"),
        ("clamped", "hardly accepted"),
    ],
)
async def test_the_reference_engine_in_every_window_mode(tmp_path: Path, arm: str, shape: str) -> None:
    async with engine(tmp_path, arm) as url:
        _, measured = await run(url, window=256, context_limit=8192, pairs=9, output=40)
    assert measured.shape == shape, measured
