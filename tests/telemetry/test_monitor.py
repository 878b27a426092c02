"""The monitor as a real process: what it tells, and that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostrig import MonitorProcess, Run

from dflash_backend.hostside import _listening, _sockets

SAMPLES = Path(__file__).parent.parent / "data" / "samples"


def wait_for(condition: Callable[[], object], what: str, deadline: float = 15.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def start_run(root: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(server: str, **options: object) -> Run:
        runs.append(Run(root, server, **options))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def smi(folder: Path, script: str) -> dict[str, str]:
    """An ``nvidia-smi`` on PATH that prints what a real one was seen to print."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def loop(lines: list[str]) -> str:
    body = "\n".join(f"echo '{line}'" for line in lines)
    return f'case "$*" in *compute-apps*) exit 0;; esac\nwhile :; do\n{body}\nsleep 0.1\ndone\n'


# Life and death -------------------------------------------------------------------------------------


def test_first_line_is_the_protocol_then_ticks(root: Path) -> None:
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        hello = monitor.next()
        assert hello["protocol"] == 1
        assert hello["cpus"] == os.cpu_count()
        assert hello["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        tick = monitor.next()
        assert tick["host"]["memory_total_mib"] > tick["host"]["memory_available_mib"] > 0
        assert tick["notes"] == {}
        assert tick["runs"] == []


def test_it_ends_when_its_input_ends(root: Path) -> None:
    with MonitorProcess({"root": str(root)}) as monitor:
        monitor.next()
        assert monitor.process.stdin is not None
        monitor.process.stdin.close()
        assert monitor.process.wait(15) == 0
        monitor.process.stdin = open(os.devnull, "wb")  # noqa: SIM115 - closed by the rig


def test_it_ends_at_a_broken_pipe_while_its_input_stays_open(root: Path) -> None:
    with MonitorProcess({"root": str(root)}) as monitor:
        monitor.next()
        assert monitor.process.stdout is not None
        monitor.process.stdout.close()
        monitor.process.wait(15)
        monitor.process.stdout = open(os.devnull, "rb")  # noqa: SIM115 - closed by the rig


def test_it_ends_although_nobody_reads_and_a_write_is_stuck(
    root: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run("a")
    with MonitorProcess({"root": str(root)}) as monitor:
        run.say("x" * 79 + "\n")
        monitor.next()
        # Enough for the pipe to fill although nobody reads.
        deadline = time.monotonic() + 20
        state = ""
        while time.monotonic() < deadline:
            run.say(("y" * 79 + "\n") * 500)
            state = Path(f"/proc/{monitor.process.pid}/wchan").read_text()
            if "pipe_write" in state or state in ("0", ""):
                break
        assert monitor.process.stdin is not None
        monitor.process.stdin.close()
        assert monitor.process.wait(15) == 0
        monitor.process.stdin = open(os.devnull, "wb")  # noqa: SIM115 - closed by the rig


@pytest.mark.parametrize("end", ["eof", "kill"])
def test_no_child_outlives_it(root: Path, tmp_path: Path, end: str) -> None:
    pid_file = tmp_path / "child"
    env = smi(tmp_path / "bin", f"echo $$ > {pid_file}\n" + loop(["0, GPU, GPU-1, 1, 2, 3, 4, 5, 6"]))
    monitor = MonitorProcess({"root": str(root)}, env=env)
    try:
        wait_for(lambda: pid_file.exists() and pid_file.read_text().strip(), "the child")
        child = int(pid_file.read_text())
        if end == "kill":
            os.kill(monitor.process.pid, signal.SIGKILL)
    finally:
        monitor.close()
    if end == "eof":
        # Not even a zombie that somebody else would have to reap.
        assert not os.path.exists(f"/proc/{child}")
    wait_for(lambda: gone(child), "the end of nvidia-smi")


def test_the_silence_of_a_console_that_pinged_ends_it(root: Path) -> None:
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        monitor.next()
        monitor.send({"ping": True})

        def armed() -> bool:
            # A pending alarm is not visible in /proc; the handler is the default one, which ends the process.
            monitor.next()
            return True

        assert armed()
        os.kill(monitor.process.pid, signal.SIGALRM)
        assert monitor.process.wait(15) == -signal.SIGALRM


def test_commands_are_obeyed_and_nonsense_is_not(root: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
            monitor.next()
            assert monitor.next()["listening"] == {}
            for nonsense in (
                {"ports": "x"},
                {"ports": [True, -1, 70000, "1"]},
                {"interval": "soon"},
                {"": None},
            ):
                monitor.send(nonsense)
            assert monitor.process.stdin is not None
            monitor.process.stdin.write(b"not json\n[1]\n\xff\xfe\n")
            monitor.send({"ports": [port, 1]})
            tick = monitor.until(lambda m: m["listening"])
            assert tick["listening"] == {str(port): os.getpid()}
            monitor.send({"quit": True})
            assert monitor.process.wait(15) == 0


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12"])
def test_it_runs_on_old_and_new_pythons(root: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    works = python and subprocess.run([python, "-c", "0"], capture_output=True, check=False).returncode == 0
    pyenv = sorted(Path("/root/.pyenv/versions").glob(f"{version}.*/bin/python")) if not works else []
    if not works and not pyenv:
        pytest.skip(f"no Python {version} here")
    with MonitorProcess({"root": str(root)}, python=str(pyenv[0]) if pyenv else python) as monitor:
        assert monitor.next()["python"].startswith(version)
        assert monitor.next()["notes"] == {}


def test_the_kernel_and_proc_agree_on_who_listens() -> None:
    with contextlib.ExitStack() as stack:
        ports = set()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            listener = stack.enter_context(socket.socket(family))
            try:
                listener.bind((address, 0))
            except OSError:
                continue  # no IPv6 here
            listener.listen()
            ports.add(listener.getsockname()[1])
        told = _listening.listening()
        slow = {one.port: one.inode for one in _sockets.listeners()}
        assert ports <= set(told)
        assert {port: told[port] for port in ports} == {port: slow[port] for port in ports}


def test_without_socket_diagnosis_proc_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_listening, "NETLINK_SOCK_DIAG", 31)  # no such protocol
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert listener.getsockname()[1] in _listening.listening()


# GPUs ------------------------------------------------------------------------------------------------

FULL = "NVIDIA H200, GPU-aa, 1024, 143771, 37, 250.11, 700.00, 41, 1980, 3201, 0, Disabled"


def test_gpu_figures_come_from_one_long_running_child(root: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    env = smi(tmp_path / "bin", f"echo $LC_ALL $* >> {starts}\n" + loop([f"0, {FULL}", f"1, {FULL}"]))
    with MonitorProcess({"root": str(root)}, env=env) as monitor:
        tick = monitor.until(lambda m: len(m.get("gpu", {}).get("rows", ())) == 2)
        assert tick["gpu"]["source"] == "nvidia-smi"
        row = tick["gpu"]["rows"][1]
        assert (row["index"], row["name"], row["uuid"]) == (1, "NVIDIA H200", "GPU-aa")
        assert (row["memory_used_mib"], row["memory_total_mib"], row["power_w"]) == (1024, 143771, 250.11)
        assert (row["utilization_pct"], row["temperature_c"], row["ecc_uncorrected"]) == (37, 41, 0)
        assert row["health"] == "ok"
        for _ in range(5):
            monitor.next()
    lines = starts.read_text().splitlines()
    assert [line for line in lines if "--query-gpu" in line] == lines[:1]
    assert lines[0].startswith("C ")
    assert "-lms" in lines[0]


@pytest.mark.parametrize(
    ("cells", "health", "missing"),
    [
        ("[N/A], [N/A], 0, 11.17, [N/A], 35, 2000, [N/A], [N/A], [N/A]", "ok", {"memory_used_mib"}),
        (
            "[GPU requires reset], 80620, [GPU requires reset], ERR!, 700, 74, ERR!, 1, 0, Disabled",
            "reset-required",
            {"memory_used_mib", "utilization_pct", "power_w", "sm_clock_mhz"},
        ),
        ("0, 97887, ERR!, ERR!, 600, ERR!, ERR!, ERR!, 0, Disabled", "error", {"power_w", "temperature_c"}),
        ("0, 97887, 1, 2, 600, 3, 4, 5, 12, Disabled", "ecc-errors", set()),
        (
            "[Not Supported], [Unknown Error], [Insufficient Permissions], N/A, , [Request], x, nan, inf, -",
            "error",
            {"memory_used_mib", "memory_total_mib", "utilization_pct", "power_w", "temperature_c"},
        ),
        ("[N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], Enabled", "unknown", {"power_w"}),
    ],
)
def test_odd_cells_are_missing_and_the_row_stays(
    root: Path, tmp_path: Path, cells: str, health: str, missing: set[str]
) -> None:
    env = smi(tmp_path / "bin", loop([f"0, NVIDIA GB10, GPU-1, {cells}", f"1, {FULL}"]))
    with MonitorProcess({"root": str(root)}, env=env) as monitor:
        tick = monitor.until(lambda m: len(m.get("gpu", {}).get("rows", ())) == 2)
    row = tick["gpu"]["rows"][0]
    assert row["health"] == health
    assert all(row[key] is None for key in missing)
    assert 0 not in [row[key] for key in missing]
    assert tick["gpu"]["rows"][1]["memory_used_mib"] == 1024


def test_a_comma_in_the_name_and_units_that_were_not_asked_for(root: Path, tmp_path: Path) -> None:
    line = "0, Tesla, the big one, GPU-1, 5 MiB, 6 MiB, 7 %, 8 W, 9 W, 10, 11 MHz, 12 MHz, 0, Disabled"
    with MonitorProcess({"root": str(root)}, env=smi(tmp_path / "bin", loop([line]))) as monitor:
        tick = monitor.until(lambda m: m.get("gpu", {}).get("rows"))
    row = tick["gpu"]["rows"][0]
    assert (row["name"], row["uuid"], row["memory_used_mib"]) == ("Tesla, the big one", "GPU-1", 5)


def test_an_old_driver_is_asked_for_less(root: Path, tmp_path: Path) -> None:
    script = (
        'case "$*" in *ecc*) echo \'Field "ecc.errors" is not a valid field to query.\'; exit 2;; esac\n'
        + loop(["0, K80, GPU-1, 1, 2, 3, 4, 5"])
    )
    with MonitorProcess({"root": str(root)}, env=smi(tmp_path / "bin", script)) as monitor:
        tick = monitor.until(lambda m: m.get("gpu", {}).get("rows"))
    assert tick["gpu"]["rows"][0]["temperature_c"] == 5
    assert tick["gpu"]["rows"][0].get("ecc_uncorrected") is None


FAILURES = [
    line
    for line in (SAMPLES / "34_nvsmi_fail.txt").read_text().splitlines()
    if not line.startswith("NVML library")
]


@pytest.mark.parametrize("text", FAILURES)
def test_a_failure_of_the_driver_is_told_with_advice(root: Path, tmp_path: Path, text: str) -> None:
    env = smi(tmp_path / "bin", f"echo '{text}'\nexit 9\n")
    with MonitorProcess({"root": str(root)}, env=env) as monitor:
        tick = monitor.until(lambda m: "exit" in m.get("gpu", {}).get("note", ""))
    assert tick["gpu"]["source"] == "none"
    assert tick["gpu"]["rows"] == []
    assert text in tick["gpu"]["note"]
    assert any(word in tick["gpu"]["note"] for word in ("reboot", "restart", "PATH"))
    assert tick["notes"] == {}


def test_no_gpu_is_said_plainly(root: Path, tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi")
    with MonitorProcess({"root": str(root)}) as monitor:
        tick = monitor.until(lambda m: "not found" in m.get("gpu", {}).get("note", ""))
    assert tick["gpu"]["source"] == "none"


def test_a_driver_that_falls_silent_gives_no_figures(root: Path, tmp_path: Path) -> None:
    env = smi(
        tmp_path / "bin", f'case "$*" in *compute-apps*) exit 0;; esac\necho "0, {FULL}"\nexec sleep 600\n'
    )
    with MonitorProcess({"root": str(root)}, env=env) as monitor:
        monitor.until(lambda m: m.get("gpu", {}).get("rows"))
        tick = monitor.until(lambda m: "not answered" in m["gpu"]["note"], deadline=30)
    assert tick["gpu"]["rows"][0]["name"] == "NVIDIA H200"
    assert tick["gpu"]["rows"][0].get("memory_used_mib") is None


def test_gpus_of_a_run_are_those_that_its_processes_use(
    root: Path, tmp_path: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run("a")
    own, other = f"GPU-b, {run.process.pid}, python, with comma, 512", "GPU-a, 4000000, other, [N/A]"
    apps = f"echo '{own}'; echo '{other}'; exit 0"
    rows = [f"{i}, {FULL.replace('GPU-aa', uuid)}" for i, uuid in enumerate(("GPU-a", "GPU-b"))]
    script = f'case "$*" in *compute-apps*) {apps};; esac\n' + loop(rows)
    with MonitorProcess({"root": str(root)}, env=smi(tmp_path / "bin", script)) as monitor:
        tick = monitor.until(lambda m: m.get("runs") and m["runs"][0].get("gpus"))
    assert tick["runs"][0]["gpus"] == [1]
    not_ours, ours = (row["processes"][0] for row in tick["gpu"]["rows"])
    assert (ours["name"], ours["memory_mib"]) == ("python,with comma", 512)
    assert (not_ours["memory_mib"], not_ours["user"]) == (None, None)


NVML = """
import sys
this = sys.modules[__name__]  # as the real module does
class NVMLError(Exception):
    def __init__(self, value): super().__init__("NVML error %d" % value); self.value = value
class Of:
    def __init__(self, **values): self.__dict__.update(values)
def nvmlInit():
    if INIT: raise NVMLError(INIT)
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index):
    if index == 2: raise NVMLError(15)
    return index
def nvmlDeviceGetName(handle): return b"NVIDIA H200"
def nvmlDeviceGetUUID(handle): return "GPU-%d" % handle
def nvmlDeviceGetMemoryInfo(handle):
    if handle == 1: raise NVMLError(16)
    return Of(used=2 * 2**20, total=8 * 2**20)
def nvmlDeviceGetUtilizationRates(handle): raise NVMLError(3)
def nvmlDeviceGetPowerUsage(handle): return 99757
def nvmlDeviceGetTemperature(handle, sensor): return 41
def nvmlDeviceGetTotalEccErrors(handle, kind, counter): return 0
def nvmlDeviceGetMigMode(handle): return (0, 0)
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Of(pid=PID, usedGpuMemory=2**20), Of(pid=4000000, usedGpuMemory=None)]
"""


@pytest.fixture
def nvml_venv(tmp_path: Path) -> Callable[[int], Path]:
    """A venv on the host whose ``pynvml`` behaves as a driver in a given state."""

    def make(init: int) -> Path:
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "pynvml.py").write_text(f"INIT = {init}\nPID = {os.getpid()}\n{NVML}")
        return venv

    return make


def test_nvml_is_asked_when_the_venv_has_it(root: Path, nvml_venv: Callable[[int], Path]) -> None:
    venv = nvml_venv(0)
    with MonitorProcess({"root": str(root)}, python=str(venv)) as monitor:
        tick = monitor.until(lambda m: m.get("gpu", {}).get("rows"))
    assert tick["gpu"]["source"] == "nvml"
    good, sick, lost = tick["gpu"]["rows"]
    assert (good["name"], good["uuid"], good["health"]) == ("NVIDIA H200", "GPU-0", "ok")
    assert (good["memory_used_mib"], good["memory_total_mib"], good["power_w"]) == (2, 8, 99.757)
    assert (good["utilization_pct"], good["sm_clock_mhz"]) == (None, None)
    ours, foreign = good["processes"]
    assert (ours["pid"], ours["memory_mib"]) == (os.getpid(), 1)
    assert ours["name"]
    assert ours["user"]
    assert (foreign["memory_mib"], foreign["user"], foreign["name"]) == (None, None, "")
    assert (sick["health"], sick["memory_used_mib"], sick["power_w"]) == ("reset-required", None, 99.757)
    assert (lost["health"], lost["power_w"], lost["memory_used_mib"]) == ("error", None, None)
    assert "dmesg" in lost["health_note"]
    assert not list(venv.rglob("pynvml*.pyc"))


def test_nvml_that_does_not_start_leads_to_nvidia_smi(
    root: Path, tmp_path: Path, nvml_venv: Callable[[int], Path]
) -> None:
    env = smi(tmp_path / "bin", loop([f"0, {FULL}"]))
    with MonitorProcess({"root": str(root)}, env=env, python=str(nvml_venv(18))) as monitor:
        tick = monitor.until(lambda m: m.get("gpu", {}).get("rows"))
    assert tick["gpu"]["source"] == "nvidia-smi"


# Runs ------------------------------------------------------------------------------------------------


def test_a_run_is_told_with_its_memory_and_what_never_changes_only_once(
    root: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run("a", code="x = bytearray(40_000_000); import sys; sys.stdin.read()", profile_toml="t = 1")
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        monitor.next()
        first = monitor.next()["runs"][0]
        assert first["alive"]
        assert first["argv"] == ["python", "-m", "sglang.launch_server"]
        assert first["profile_toml"] == "t = 1"
        assert (first["server"], first["pid"]) == ("a", run.process.pid)
        row = monitor.until(lambda m: m["runs"][0]["rss_mib"] > 40)["runs"][0]
        assert "argv" not in row
        assert "profile_toml" not in row


def test_kill_minus_nine_is_seen(root: Path, start_run: Callable[..., Run]) -> None:
    run = start_run("a")
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        monitor.until(lambda m: m.get("runs") and m["runs"][0]["alive"])
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        row = monitor.until(lambda m: not m["runs"][0]["alive"])["runs"][0]
        assert row["exit_code"] is None
        run.record_exit(137)
        row = monitor.until(lambda m: m["runs"][0]["exit_code"] is not None)["runs"][0]
        assert row["exit_code"] == 137


def test_the_log_comes_in_whole_lines_once_and_never_too_much(
    root: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run("a")
    run.say("old\n" * 20_000 + "one\ntwo\nthr")
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        monitor.next()
        piece = monitor.next()["runs"][0]["log"]
        assert piece["reset"]
        assert len(piece["text"]) <= 16 * 1024
        assert piece["text"].endswith("one\ntwo\n")
        assert piece["partial"] == "thr"
        assert "log" not in monitor.next()["runs"][0]
        run.say(b"ee\nfour \xff\xc3\n\rbar 50%\rbar 60%")
        piece = monitor.until(lambda m: "log" in m["runs"][0])["runs"][0]["log"]
        assert not piece["reset"]
        assert piece["text"].startswith("three\nfour \ufffd\ufffd\n")
        assert piece["partial"] == "bar 60%"
        # Truncated and rotated logs begin again.
        run.log.write_text("new\n")
        piece = monitor.until(lambda m: "log" in m["runs"][0])["runs"][0]["log"]
        assert (piece["reset"], piece["text"]) == (True, "new\n")
        run.log.rename(run.folder / "log.1")
        run.log.write_text("rotated\n")
        piece = monitor.until(lambda m: "log" in m["runs"][0])["runs"][0]["log"]
        assert (piece["reset"], piece["text"]) == (True, "rotated\n")


def test_a_line_without_end_is_bounded(root: Path, start_run: Callable[..., Run]) -> None:
    run = start_run("a")
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        monitor.until(lambda m: m.get("runs"))
        run.say("z" * 1_000_000)
        piece = monitor.until(lambda m: "log" in m["runs"][0])["runs"][0]["log"]
        assert len(piece["text"]) + len(piece["partial"]) <= 2 * 64 * 1024


def test_only_the_newest_run_of_a_server_and_living_ones_are_told(
    root: Path, start_run: Callable[..., Run]
) -> None:
    for number in range(1, 4):
        start_run("a", number=number, stamp=f"2026010{number}T000000Z").kill()
    old = start_run("a", number=9, stamp="20250101T000000Z")
    start_run("b", number=5)
    (root / "20270101T000000Z-00000000").mkdir(mode=0o700)  # a launch that was cut off
    (root / "rubbish").write_text("no folder")
    with MonitorProcess({"root": str(root), "gpus": False}) as monitor:
        tick = monitor.until(lambda m: m.get("runs"))
    seen = {(row["server"], row["run_id"]): row for row in tick["runs"]}
    assert ("a", "20260103T000000Z-00000003") in seen
    assert ("a", old.run_id) in seen
    assert not [key for key in seen if key[1].startswith(("20260101", "20260102")) and key[0] == "a"]
    assert [row["alive"] for row in tick["runs"] if row["server"] == "b"] == [True]


def test_a_broken_section_leaves_the_others_alone(tmp_path: Path, start_run: Callable[..., Run]) -> None:
    root = tmp_path / "runs"
    run = start_run("a")
    (run.folder / "run.json").write_text("{broken")
    (run.folder / "pid").write_text("also broken")
    with MonitorProcess({"root": str(root), "gpus": False, "ports": [1]}) as monitor:
        monitor.next()
        tick = monitor.next()
    assert tick["host"]["memory_total_mib"] > 0
    assert "damaged" in tick["runs"][0]["note"]
    assert json.dumps(tick)


def test_a_missing_root_is_an_empty_list(tmp_path: Path) -> None:
    with MonitorProcess({"root": str(tmp_path / "nowhere"), "gpus": False}) as monitor:
        monitor.next()
        assert monitor.next()["runs"] == []
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_written_on_the_host(root: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with MonitorProcess({"root": str(root)}, python=sys.executable) as monitor:
        monitor.next()
        monitor.next()
    assert sorted(tmp_path.rglob("*")) == before
