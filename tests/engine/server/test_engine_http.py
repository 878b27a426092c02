"""SGLang's HTTP surface, as a client sees it, over the real engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import ServerProcess

CODE = "import os\nimport sys\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
GREEDY = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}


async def generate(http: aiohttp.ClientSession, server: ServerProcess, **body: object) -> Any:
    async with http.post(f"{server.url}/generate", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events up to [DONE], which must come."""
    async for raw in response.content:
        line = raw.decode().strip()
        if line == "data: [DONE]":
            return
        if line:
            assert line.startswith("data: "), line
            yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream ended without [DONE]")


async def metric(http: aiohttp.ClientSession, server: ServerProcess, name: str, **labels: str) -> float:
    async with http.get(f"{server.url}/metrics") as response:
        text = await response.text()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and all(sample.labels.get(k) == v for k, v in labels.items()):
                return sample.value
    raise AssertionError(f"{name} is missing")


async def test_generate_answers_text_ids_and_speculation(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    answer = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 24
    assert meta["finish_reason"] == {"type": "length", "length": 24}
    assert meta["cached_tokens"] == 0
    assert 1 <= meta["spec_verify_ct"] < 24
    assert meta["spec_accept_length"] == pytest.approx(24 / meta["spec_verify_ct"])
    histogram = meta["spec_correct_drafts_histogram"]
    assert sum(histogram) == meta["spec_verify_ct"]
    assert sum(k * n for k, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    assert meta["spec_num_proposed_drafts"] == 16 * meta["spec_verify_ct"]


async def test_a_stream_grows_to_the_same_answer(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    whole = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    body = {"text": CODE, "sampling_params": GREEDY, "stream": True}
    async with http.post(f"{tree_server.url}/generate", json=body) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        seen = [event async for event in events(response)]
    counts = [event["meta_info"]["completion_tokens"] for event in seen]
    assert counts == sorted(counts)
    assert len(counts) < 24, "several tokens come in one event under speculation"
    assert all(event["meta_info"]["finish_reason"] is None for event in seen[:-1])
    assert (seen[-1]["text"], seen[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    for earlier, later in itertools.pairwise(seen):
        assert later["text"].startswith(earlier["text"])


async def test_a_batch_keeps_its_order_and_ids_may_be_given(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    async with http.post(f"{tree_server.url}/tokenize", json={"prompt": CODE}) as response:
        tokens = (await response.json())["tokens"]
    one = await generate(http, tree_server, input_ids=tokens, sampling_params=GREEDY)
    many = await generate(http, tree_server, text=["x = 1\n", CODE], sampling_params=GREEDY, rid=["a", "b"])
    assert [answer["meta_info"]["id"] for answer in many] == ["a", "b"]
    assert many[1]["output_ids"] == one["output_ids"]
    async with http.post(f"{tree_server.url}/detokenize", json={"tokens": tokens}) as response:
        assert (await response.json())["text"] == CODE


async def test_a_stop_string_cuts_the_text_and_is_never_half_sent(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    free = await generate(http, tree_server, text=CODE, sampling_params={**GREEDY, "max_new_tokens": 64})
    stop = free["text"][20:26]
    params = {**GREEDY, "max_new_tokens": 64, "stop": [stop, "never-in-there"]}
    cut = await generate(http, tree_server, text=CODE, sampling_params=params)
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    body = {"text": CODE, "sampling_params": params, "stream": True}
    async with http.post(f"{tree_server.url}/generate", json=body) as response:
        texts = [event["text"] async for event in events(response)]
    assert texts[-1] == cut["text"]
    assert all(cut["text"].startswith(text) for text in texts)


async def test_completions_stream_usage_continuously(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    body = {
        "model": "any",
        "prompt": CODE,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with http.post(f"{tree_server.url}/v1/completions", json=body) as response:
        seen = [event async for event in events(response)]
    whole = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    assert "".join(event["choices"][0]["text"] for event in seen if event["choices"]) == whole["text"]
    assert seen[-1]["choices"] == []
    assert seen[-1]["usage"]["completion_tokens"] == 24
    used = [event["usage"]["completion_tokens"] for event in seen]
    assert used == sorted(used)
    assert used[0] >= 1
    assert seen[-2]["choices"][0]["finish_reason"] == "length"


async def test_chat_answers_in_openai_form(http: aiohttp.ClientSession, tree_server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 8, "temperature": 0}
    async with http.post(f"{tree_server.url}/v1/chat/completions", json=body) as response:
        answer = await response.json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 8
    async with http.post(f"{tree_server.url}/v1/chat/completions", json={**body, "stream": True}) as response:
        seen = [event async for event in events(response)]
    assert seen[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in seen)
    assert text == answer["choices"][0]["message"]["content"]


async def test_it_says_what_it_is(http: aiohttp.ClientSession, tree_server: ServerProcess) -> None:
    async with http.get(f"{tree_server.url}/server_info") as response:
        info = await response.json()
    assert info["version"].startswith("dflash-engine-")
    assert info["device"] == "cpu"
    assert (info["speculative_algorithm"], info["speculative_ddtree_budget"]) == ("DDTREE", 16)
    layers = info["dflash_engine"]["layer_windows"]
    assert [(one["window"], one["causal"]) for one in layers] == [(256, True), (256, True), (None, False)]
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] > 0
    async with http.get(f"{tree_server.url}/v1/models") as response:
        assert (await response.json())["data"][0]["owned_by"] == "dflash-engine"
    async with http.get(f"{tree_server.url}/model_info") as response:
        assert (await response.json())["architectures"] == ["Qwen3ForCausalLM"]


async def test_metrics_and_loads_move_with_the_work(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    name, labels = "sglang:realtime_tokens_total", {"mode": "decode"}
    before = await metric(http, tree_server, name, **labels)
    calls = await metric(http, tree_server, "sglang:spec_verify_calls_total")
    answer = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    assert await metric(http, tree_server, name, **labels) - before == 24
    verified = await metric(http, tree_server, "sglang:spec_verify_calls_total") - calls
    assert verified == answer["meta_info"]["spec_verify_ct"]
    assert await metric(http, tree_server, "sglang:spec_accept_length") >= 1
    async with http.get(f"{tree_server.url}/v1/loads?include=core") as response:
        (load,) = (await response.json())["loads"]
    assert load["num_running_reqs"] == 0
    assert load["speculative"]["accept_length"] >= 1


async def test_the_log_speaks_sglangs_form(http: aiohttp.ClientSession, tree_server: ServerProcess) -> None:
    await generate(http, tree_server, text=CODE, sampling_params={**GREEDY, "max_new_tokens": 64})
    log = tree_server.log()
    for pattern in (
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] server_args=ReferenceEngineArgs\(",
        r"Load weight end\. elapsed=[\d.]+ s, type=Qwen3ForCausalLM",
        r"Load weight end\. elapsed=[\d.]+ s, type=DFlashDraftModel",
        r"KV Cache is allocated\. #tokens: [1-9]\d*",
        r"Initialized DFLASH draft runner\. .*block_size=16, draft_window_size=None, compact_cache=False",
        r"0 sliding_attention window=256 causal; .*2 full_attention window=None non-causal",
        r"The server is fired up and ready to roll!",
        r"Prefill batch, #new-seq: 1, #new-token: \d+, #cached-token: 0",
        r"Decode batch, #running-req: 1, .*accept len: \d+\.\d\d, .*gen throughput \(token/s\): \d",
        r'INFO:     127\.0\.0\.1:\d+ - "POST /generate HTTP/1\.1" 200',
    ):
        assert re.search(pattern, log), pattern


async def test_settings_change_live_and_all_or_nothing(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    async def change(**settings: object) -> tuple[int, Any]:
        url = f"{tree_server.url}/set_internal_state"
        async with http.post(url, json={"server_args": settings}) as response:
            return response.status, await response.json()

    async def info() -> dict[str, Any]:
        async with http.get(f"{tree_server.url}/server_info") as response:
            return await response.json()

    baseline = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    status, _ = await change(speculative_ddtree_budget=4, speculative_draft_window_mode="ignored")
    assert status == 200
    now = await info()
    assert (now["speculative_ddtree_budget"], now["speculative_draft_window_mode"]) == (4, "ignored")
    assert all(one["window"] is None for one in now["dflash_engine"]["layer_windows"])
    changed = await generate(http, tree_server, text=CODE, sampling_params=GREEDY)
    assert changed["output_ids"] == baseline["output_ids"], (
        "whatever the drafter does, the output is the target's"
    )
    assert changed["meta_info"]["spec_verify_ct"] > baseline["meta_info"]["spec_verify_ct"]
    for bad in (
        {"speculative_ddtree_budget": 0},
        {"speculative_ddtree_budget": 10**9, "speculative_draft_window_mode": "declared"},
        {"speculative_ddtree_budget": "8"},
        {"speculative_ddtree_budget": True},
        {"speculative_draft_window_mode": "sideways"},
        {"speculative_draft_window_size": -1},
        {"model_path": "/etc"},
        {},
    ):
        status, answer = await change(**bad)
        assert status == 400, bad
        assert answer["error"]["message"]
    assert (await info())["speculative_draft_window_mode"] == "ignored"
    status, _ = await change(speculative_ddtree_budget=16, speculative_draft_window_mode="declared")
    assert status == 200


BAD_BODIES: list[tuple[str, bytes]] = [
    ("/generate", b"{"),
    ("/generate", b"\xff\xfe"),
    ("/generate", b"[1]"),
    ("/generate", b"[" * 100_000),
    ("/generate", b"{}"),
    ("/generate", b'{"text": 5}'),
    ("/generate", b'{"text": "a", "input_ids": [1]}'),
    ("/generate", b'{"text": []}'),
    ("/generate", b'{"text": ""}'),
    ("/generate", b'{"input_ids": [99999999]}'),
    ("/generate", b'{"input_ids": [-1]}'),
    ("/generate", b'{"text": "a", "sampling_params": {"temperature": -1}}'),
    ("/generate", b'{"text": "a", "sampling_params": {"temperature": 1e999}}'),
    ("/generate", b'{"text": "a", "sampling_params": {"top_p": 0}}'),
    ("/generate", b'{"text": "a", "sampling_params": {"top_k": 5}}'),
    ("/generate", b'{"text": "a", "sampling_params": {"max_new_tokens": -1}}'),
    ("/generate", b'{"text": "a", "sampling_params": [{}, {}]}'),
    ("/generate", b'{"text": "a", "return_logprob": true}'),
    ("/generate", b'{"text": "a", "sampling_params": {"max_new_tokens": 100000}}'),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": "x"}'),
    ("/v1/completions", b'{"model": "m"}'),
    ("/v1/completions", b'{"prompt": "a", "n": 2}'),
    ("/v1/completions", b'{"prompt": []}'),
    ("/v1/completions", b'{"prompt": ["a", 1]}'),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user"}]}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}'),
    ("/tokenize", b'{"prompt": 1}'),
    ("/detokenize", b'{"tokens": [123456789]}'),
    ("/abort_request", b"{}"),
]


@pytest.mark.parametrize(("path", "body"), BAD_BODIES)
async def test_a_bad_request_is_one_answer_and_the_server_lives_on(
    http: aiohttp.ClientSession, tree_server: ServerProcess, path: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post(tree_server.url + path, data=body, headers=headers) as response:
        assert response.status == 400, await response.text()
        answer = await response.json()
    message = answer["message"] if path.startswith("/v1/") else answer["error"]["message"]
    assert message
    assert "Traceback" not in message
    async with http.get(f"{tree_server.url}/health") as response:
        assert response.status == 200


async def test_a_prompt_over_the_context_and_a_body_over_the_limit(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    async with http.post(f"{tree_server.url}/generate", json={"text": "x = 1\n" * 4000}) as response:
        assert response.status == 400
        assert "2048" in (await response.json())["error"]["message"]
    async with http.post(f"{tree_server.url}/generate", data=b'{"text": "' + b"x" * (17 << 20)) as response:
        assert response.status == 413
    async with http.get(f"{tree_server.url}/nowhere") as response:
        assert response.status == 404
    assert await generate(http, tree_server, text=CODE, sampling_params=GREEDY)


async def idle(http: aiohttp.ClientSession, server: ServerProcess) -> None:
    """Waits until nothing runs."""
    for _ in range(600):
        async with http.get(f"{server.url}/v1/loads") as response:
            (load,) = (await response.json())["loads"]
        if load["num_running_reqs"] + load["num_waiting_reqs"] == 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail("requests are left running")


async def test_a_client_that_goes_away_frees_its_slot(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    body = {"text": CODE, "sampling_params": {**GREEDY, "max_new_tokens": 1500}, "stream": True}
    response = await http.post(f"{tree_server.url}/generate", json=body)
    await response.content.readline()
    response.close()
    await idle(http, tree_server)
    assert await metric(http, tree_server, "sglang:num_aborted_requests_total") >= 1


async def test_flush_is_refused_while_busy_and_abort_ends_a_request(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    body = {
        "text": CODE,
        "rid": "long",
        "sampling_params": {**GREEDY, "max_new_tokens": 1500},
        "stream": True,
    }
    async with http.post(f"{tree_server.url}/generate", json=body) as response:
        await response.content.readline()
        async with http.post(f"{tree_server.url}/flush_cache") as flushed:
            assert flushed.status == 400
        async with http.post(f"{tree_server.url}/generate", json={**body, "stream": False}) as twin:
            assert twin.status == 409
        async with http.post(f"{tree_server.url}/abort_request", json={"rid": "long"}) as aborted:
            assert aborted.status == 200
        last = [event async for event in events(response)][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    await idle(http, tree_server)
    async with http.post(f"{tree_server.url}/flush_cache") as flushed:
        assert flushed.status == 200


async def test_sixty_four_requests_at_once_are_all_served_alike(
    http: aiohttp.ClientSession, tree_server: ServerProcess
) -> None:
    params = {**GREEDY, "max_new_tokens": 12}
    single = await generate(http, tree_server, text=CODE, sampling_params=params)
    answers = await asyncio.gather(
        *(generate(http, tree_server, text=CODE, sampling_params=params) for _ in range(64))
    )
    assert all(answer["output_ids"] == single["output_ids"] for answer in answers)
    await idle(http, tree_server)
