"""nvidia-smi's output of many drivers; odd cells become None and the row stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.sglang.gpu_cells import gpu_from_row, read_cell
from dflash_backend.sglang.nvidia_smi import SmiReport, read_nvidia_smi

DATA = Path(__file__).parent.parent / "data" / "samples"
ODD = [
    "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]",
    "[GPU requires reset]", "ERR!", "[Requested functionality has been deprecated]", "",
]  # fmt: skip


TABLE = """Mon Nov 30 11:11:11 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|   0  NVIDIA H200                    On  |   00000000:19:00.0 Off |                    0 |
| N/A   31C    P0             77W /  700W |   97000MiB / 143771MiB |     93%      Default |
|   1  NVIDIA RTX PRO 6000 Blac...    Off |   00000000:3B:00.0 Off |                  Off |
| 30%   62C    P1            580W /  600W |   90123MiB /  97887MiB |    100%      Default |
| Processes:                                                                              |
|    0   N/A  N/A           12345      C   sglang::scheduler_TP0                 96990MiB |
|    1   N/A  N/A            2222      C   /usr/bin/python, odd                     90MiB |
+-----------------------------------------------------------------------------------------+
"""


def sample(name: str) -> SmiReport:
    return read_nvidia_smi((DATA / name).read_bytes())


def test_rows_without_a_header_keep_every_cell() -> None:
    report = sample("26_nvsmi_na_vs_notsupported.csv")
    assert len(report.rows) == 3
    first, second, third = report.rows
    assert [c.value for c in first.cells] == [2004, 2004, 0, 44, None, 0, 0]
    assert first.cells[4].problem == "N/A"
    assert second.cells[4].problem == "Not Supported"
    assert third.cells[0].text == "GeForce GTX 770"
    assert (third.cells[6].value, third.cells[6].unit) == (52, "%")
    assert third.cells[7].text == "P0"


def test_the_third_row_with_the_columns_that_were_asked_for() -> None:
    columns = (
        "name,utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit,fan.speed,pstate,"
        "clocks.sm,clocks.mem,clocks.max.sm,clocks.applications.graphics"
    ).split(",")
    line = (DATA / "26_nvsmi_na_vs_notsupported.csv").read_text(encoding="utf-8").splitlines()[2]
    (gpu,) = read_nvidia_smi(line, columns=columns).gpus
    assert (gpu.name, gpu.temperature_c, gpu.utilization_pct, gpu.health) == (
        "GeForce GTX 770",
        52,
        None,
        "ok",
    )


def test_unified_memory() -> None:
    report = sample("28_nvsmi_gb10_uma.csv")
    assert [g.temperature_c for g in report.gpus] == [38, 38, 35]
    assert [g.memory_used_mib for g in report.gpus] == [None, None, None]
    assert [g.index for g in report.gpus] == [0, 0, 0]
    assert report.gpus[2].power_w == 11.17
    assert "unified" in report.gpus[0].health_note
    ((uuid, process),) = report.processes
    assert uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (process.pid, process.name, process.memory_mib) == (114687, "/usr/local/bin/python", 19135.0)


def test_reset_required_and_err() -> None:
    lost, fine, broken = sample("30_nvsmi_requires_reset.txt").gpus
    assert (lost.health, lost.temperature_c, lost.memory_used_mib) == ("reset-required", None, 0.0)
    assert (fine.health, fine.temperature_c, fine.utilization_pct) == ("ok", 74, 100)
    assert (broken.health, broken.memory_used_mib, broken.memory_total_mib) == ("error", 58222, 97887)


def test_tables_with_mig() -> None:
    report = sample("32_nvsmi_table_mig.txt")
    a800, h100 = report.gpus
    assert (a800.name, a800.memory_used_mib, a800.memory_total_mib) == ("NVIDIA A800-SXM4-80GB", 36537, 81920)
    assert (a800.power_w, a800.power_limit_w, a800.temperature_c, a800.utilization_pct) == (87, 400, 33, None)
    assert (h100.name, h100.memory_used_mib) == ("NVIDIA H100 NVL", None)
    assert [(m.gpu, m.device, m.memory_used_mib) for m in report.migs] == [(1, 0, 14366), (1, 1, 9880)]


def test_list_with_mig_in_both_forms() -> None:
    report = sample("33_nvsmi_L_mig.txt")
    assert [g.index for g in report.gpus] == [0, 1, 0]
    assert [(m.gpu, m.device, m.profile) for m in report.migs] == [
        (0, 0, "7g.80gb"),
        (1, 0, "2g.20gb"),
        (1, 1, "1g.20gb"),
        (0, 0, "3g.20gb"),
    ]
    assert report.migs[3].uuid == "MIG-GPU-00000000-0000-0000-0000-000000000003/1/0"


def test_failures_come_with_advice() -> None:
    report = sample("34_nvsmi_fail.txt")
    advice = [problem.advice for problem in report.problems]
    assert len(advice) == 4
    assert "reboot the host" in advice[0]
    assert report.problems[1].gpu == "0000:0B:00.0"
    assert "restart the container" in advice[2]
    assert "no NVIDIA driver" in advice[3]
    assert report.notes == ("NVML library version: 570.124",)
    assert report.rows == ()


def test_a_whole_table_without_mig() -> None:
    report = read_nvidia_smi(TABLE)
    h200, pro = report.gpus
    assert (h200.index, h200.name, h200.memory_used_mib, h200.utilization_pct) == (
        0,
        "NVIDIA H200",
        97000,
        93,
    )
    assert (pro.index, pro.power_w, pro.power_limit_w, pro.temperature_c) == (1, 580, 600, 62)
    assert [(gpu, p.pid, p.memory_mib) for gpu, p in report.processes] == [
        ("0", 12345, 96990),
        ("1", 2222, 90),
    ]
    assert report.rows == ()


def test_the_monitors_own_order_needs_no_header() -> None:
    line = "1, NVIDIA H200, GPU-11111111-2222, [N/A], 143771, 93, ERR!, 700.00, 61, 1980, 3201, 7, Disabled"
    (gpu,) = read_nvidia_smi(line).gpus
    assert (gpu.index, gpu.memory_used_mib, gpu.memory_total_mib, gpu.power_w) == (1, None, 143771, None)
    assert (gpu.health, gpu.ecc_uncorrected) == ("error", 7)


def test_figures_that_may_not_be_read() -> None:
    (gpu,) = read_nvidia_smi(
        "index, memory.used [MiB], temperature.gpu\n0, [Insufficient Permissions], 40\n"
    ).gpus
    assert (gpu.memory_used_mib, gpu.temperature_c, gpu.health) == (None, 40, "ok")
    assert "permissions" in gpu.health_note


def test_process_list() -> None:
    ((uuid, process),) = sample("35_nvsmi_compute_apps.csv").processes
    assert uuid is None
    assert (process.pid, process.memory_mib) == (40170, 185.0)
    assert process.name == "/opt/rh/rh-python38/root/usr/bin/python3"


def test_names_with_commas_and_units() -> None:
    (gpu,) = read_nvidia_smi(
        "index, name, memory.used [MiB], memory.total [MiB]\n"
        "1, NVIDIA RTX PRO 6000, Blackwell, 2 GiB, 97887 MiB\n"
    ).gpus
    assert (gpu.index, gpu.name) == (1, "NVIDIA RTX PRO 6000, Blackwell")
    assert (gpu.memory_used_mib, gpu.memory_total_mib) == (2048.0, 97887.0)


def test_ecc_errors() -> None:
    gpu = gpu_from_row(
        ["index", "temperature.gpu", "ecc.errors.uncorrected.volatile.total"], ["3", "40", "2"]
    )
    assert (gpu.index, gpu.health, gpu.ecc_uncorrected) == (3, "ecc-errors", 2)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", range(2, 6))
def test_one_odd_cell_never_costs_the_row(odd: str, at: int) -> None:
    columns = ["index", "name", "memory.used", "temperature.gpu", "power.draw", "utilization.gpu"]
    cells = ["0", "X", "100", "40", "50.5", "7"]
    cells[at] = odd
    gpu = gpu_from_row(columns, cells)
    values = [gpu.memory_used_mib, gpu.temperature_c, gpu.power_w, gpu.utilization_pct]
    expected: list[float | None] = [100, 40, 50.5, 7]
    expected[at - 2] = None
    assert values == expected
    assert gpu.health == {
        "[GPU requires reset]": "reset-required",
        "ERR!": "error",
        "[Unknown Error]": "error",
    }.get(odd, "ok")


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    read_nvidia_smi(text)
    read_nvidia_smi("index, name, memory.used [MiB]\n" + text)
    read_cell(text)
