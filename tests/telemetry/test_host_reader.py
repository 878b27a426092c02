"""What the monitor of a hostile or broken host may send: nothing of it raises, nothing of it gets through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import FailedError
from dflash_backend.core.states import StageName
from dflash_backend.telemetry.host_reader import HostReader
from dflash_backend.telemetry.run_log import TAIL_CHARACTERS

HELLO = {"protocol": 1, "boot_id": "b", "cpus": 4}
AT = 1_700_000_000.0


def reader() -> HostReader:
    one = HostReader("h")
    assert one.read(HELLO, AT) is None
    return one


def tick(**parts: Any) -> dict[str, Any]:
    return {"at": AT, "notes": {}, "host": {}, "gpu": {}, "runs": [], "listening": {}, **parts}


@pytest.mark.parametrize("greeting", [{}, {"protocol": 2}, {"protocol": "1"}, [], None, "x"])
def test_another_protocol_is_refused(greeting: object) -> None:
    with pytest.raises(FailedError) as caught:
        HostReader("h").read(greeting, AT)
    assert "h: " in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
KEYS = (
    "at notes host gpu runs listening rows source note index name uuid processes pid memory_used_mib run_id "
    "server argv alive log text partial reset exit_code memory_total_mib health gpus started_at"
).split()
shaped = st.recursive(
    json_values,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=6)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(KEYS), shaped, max_size=8))
def test_no_tick_raises(message: dict[str, Any]) -> None:
    sample = reader().read(message, AT)
    assert sample is not None
    assert sample.at == AT
    assert "\x1b" not in repr(sample).replace("\\x1b", "")


def test_figures_arrive_and_odd_ones_are_missing() -> None:
    row = {
        "index": 0,
        "name": "H200\x1b]0;x\x07",
        "memory_used_mib": "12",
        "power_w": float("nan"),
        "health": "fine?",
    }
    sample = reader().read(
        tick(
            host={"memory_total_mib": 100, "load1": 0.5, "memory_available_mib": True},
            gpu={"source": "nvml", "rows": [row, {"name": "no index"}, 5]},
            listening={"30000": 7, "30001": None, "x": 1},
            notes={"gpu": "slow"},
        ),
        AT,
    )
    assert sample is not None
    (gpu,) = sample.gpus
    assert (gpu.name, gpu.memory_used_mib, gpu.power_w, gpu.health) == ("H200", None, None, "unknown")
    assert (sample.memory_total_mib, sample.memory_available_mib, sample.load1) == (100, None, 0.5)
    assert (sample.cpus, sample.boot_id, sample.gpu_source) == (4, "b", "nvml")
    assert sample.listening == {30000: 7, 30001: None}
    assert sample.notes == {"gpu": "slow"}


def test_what_is_sent_once_is_kept_and_forgotten_with_its_run() -> None:
    one = reader()
    run = {"run_id": "r", "server": "s", "alive": True, "profile": "p", "argv": ["a", "--api-key", "abcdef"]}
    first = one.read(tick(runs=[{**run, "log": {"reset": True, "text": "l1\nl2\n", "partial": ""}}]), AT)
    later = one.read(tick(runs=[{"run_id": "r", "server": "s", "alive": True}]), AT + 1)
    assert first is not None
    assert later is not None
    assert later.runs[0].profile == "p"
    assert later.runs[0].log_tail == "l1\nl2"
    assert one.read(tick(), AT + 2) is not None
    assert not one.logs
    again = one.read(tick(runs=[{"run_id": "r", "server": "s"}]), AT + 3)
    assert again is not None
    assert again.runs[0].profile == ""


def test_a_clock_that_is_off_does_not_make_a_run_old() -> None:
    sample = reader().read(
        tick(at=AT - 3600, runs=[{"run_id": "r", "server": "s", "started_at": AT - 3605}]), AT
    )
    assert sample is not None
    assert sample.runs[0].started_at == AT - 5


def test_the_log_gives_stage_throughput_and_a_bounded_clean_end() -> None:
    one = reader()

    def feed(text: str, at: float, *, reset: bool = False, partial: str = "") -> None:
        piece = {"reset": reset, "text": text, "partial": partial}
        one.read(tick(runs=[{"run_id": "r", "server": "s", "log": piece}]), at)

    line = (
        "[2026-01-01 00:00:{:02d}] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, "
        "accept len: 3.00, cuda graph: True, gen throughput (token/s): {:.2f}, #queue-req: 0\n"
    )
    feed("Load weight begin. avail mem=1 GB\n" + line.format(1, 1.0) + line.format(2, 99.0), AT, reset=True)
    log = one.logs["r"]
    # What was there before anybody looked tells nothing of now.
    assert log.decode(AT) is None
    feed(line.format(3, 80.0), AT + 1)
    found = log.decode(AT + 1)
    assert found is not None
    assert found[1] == 80.0
    assert log.decode(AT + 100) is None
    feed("", AT + 2, partial="Capturing batches (bs=8): 50%|#####     | 2/4 [00:01<00:01]")
    assert (log.stage.name, log.stage.done, log.stage.total) == (StageName.GRAPHS, 2, 4)
    feed("\x1b[31mred\x1b[0m --api-key s3cr3tvalue\n" + "x" * 100_000 + "\n", AT + 3)
    feed("y\n" * 10_000, AT + 4)
    assert "\x1b" not in "".join(log.lines)
    assert "s3cr3tvalue" not in "".join(log.lines)
    assert len(log.tail()) <= TAIL_CHARACTERS
    assert len(log.lines) <= 1001
