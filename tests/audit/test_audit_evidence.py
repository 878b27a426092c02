"""Arguments, logs, the plugin's report, measurements: which counts, and what contradicts what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_cases import ENFORCED_LAYERS, FULL_LAYERS, LOG_LINE, WINDOW, attended, codes, config, finding, look

from dflash_backend.audit.arguments import read_argv
from dflash_backend.audit.inputs import MemoryTree
from dflash_backend.audit.report import Evidence, Strength, Verdict
from dflash_backend.audit.startup_log import read_log
from dflash_sglang.report import build, log_line
from dflash_sglang.windows import LayerWindow
from rigs.sglang_sources import stock

NONE_LINE = LOG_LINE.format(window=None, compact=False)
FLAG_LINE = LOG_LINE.format(window=1024, compact=True)
START = "[2026-06-01 09:59:00] server_args=ServerArgs(model_path='/m', speculative_algorithm='DFLASH')"
CAPTURES = Path(__file__).parents[1] / "data" / "captures"


@pytest.mark.parametrize("name", ["speculative-dflash-draft-window-size", "speculative-draft-window-size"])
@pytest.mark.parametrize("form", ["{} 1024", "{}=1024"])
def test_the_flag_in_either_spelling_and_form(name: str, form: str) -> None:
    argv = ["python3", "-m", "sglang.launch_server", *form.format(f"--{name}").split(), "--port", "1"]
    report = look(release="0.5.13", flag=None, argv=argv)
    assert (report.cached_window, report.verdict) == (1024, Verdict.CLAMPED)


@pytest.mark.parametrize("key", ["speculative_dflash_draft_window_size", "speculative_draft_window_size"])
def test_the_flag_in_the_settings_of_a_running_server(key: str) -> None:
    info = {"model_path": "/m", "version": "0.5.12", key: 1024}
    report = look(release=None, server_info=info)
    assert report.sglang_version == "0.5.12"
    assert (report.cached_window, report.compact_cache) == (1024, True)
    report = look(release=None, server_info={**info, key: None})
    assert (report.cached_window, report.compact_cache) == (None, False)


def test_the_last_of_several_flags_counts_and_odd_values_are_told() -> None:
    argv = ["--speculative-draft-window-size", "1", "--speculative-draft-window-size", "512"]
    assert look(release="0.5.12", argv=argv).cached_window == 512
    report = look(release="0.5.12", argv=["--speculative-draft-window-size", "many"])
    assert "flag-unreadable" in codes(report)
    assert report.compact_cache is None
    assert report.verdict is Verdict.UNKNOWN
    assert read_argv(["--a", "--b=1", "--c", "2", "x"])["a"] is True


def test_without_arguments_and_log_an_old_release_is_not_judged() -> None:
    from dflash_backend.audit.audit import AuditInputs, audit

    for version, verdict in (("0.5.11", Verdict.UNKNOWN), ("0.5.14", Verdict.ENFORCED)):
        report = audit(AuditInputs(subject="x", draft_config=config(), sglang_version=version))
        assert report.verdict is verdict
        assert report.compact_cache is None


def test_the_log_counts_before_a_stated_flag_and_contradictions_are_findings() -> None:
    report = look(release="0.5.11", flag=WINDOW, log=[NONE_LINE])
    assert report.verdict is Verdict.IGNORED
    assert report.cached_window is None
    assert "a draft window of 2048, the log of the start says none" in finding(
        report, "log-contradicts-arguments"
    )
    report = look(release="0.5.11", log=[FLAG_LINE])
    assert report.cached_window == 1024
    assert report.verdict is Verdict.CLAMPED


def test_a_running_server_s_settings_count_before_an_old_log() -> None:
    info = {"model_path": "/m", "version": "0.5.13", "speculative_draft_window_size": None}
    report = look(release=None, server_info=info, log=[FLAG_LINE])
    assert report.cached_window is None
    assert "log-contradicts-arguments" in codes(report)


@pytest.mark.parametrize("marked", [True, False])
def test_of_two_starts_in_one_log_the_newest_counts(marked: bool) -> None:
    begin = [START] if marked else []
    report = look(release="0.5.11", log=[*begin, FLAG_LINE, "Uvicorn running", *begin, NONE_LINE])
    assert (report.cached_window, report.verdict) == (None, Verdict.IGNORED)
    assert "draft window 1024" in finding(report, "several-starts")
    report = look(release="0.5.11", log=[*begin, NONE_LINE, *begin, FLAG_LINE])
    assert (report.cached_window, report.verdict) == (1024, Verdict.CLAMPED)


def test_a_start_that_has_not_come_so_far_does_not_hide_the_one_before() -> None:
    facts = read_log([START, FLAG_LINE, START, "[2026] Load weight begin."])
    assert facts.runner is not None
    assert facts.runner.window == 1024


@pytest.mark.parametrize("release", ["0.5.11", "0.5.14"])
def test_captured_logs_of_real_servers(release: str) -> None:
    lines = (
        (CAPTURES / f"sglang-{release}-cpu-dflash" / "server.log").read_text("utf-8", "replace").splitlines()
    )
    report = look(release=release, log=lines)
    assert report.compact_cache is False
    assert report.verdict is (Verdict.IGNORED if release == "0.5.11" else Verdict.ENFORCED)


@pytest.mark.parametrize("release", ["0.5.11", "0.5.14"])
def test_captured_settings_of_real_servers(release: str) -> None:
    folder = CAPTURES / f"sglang-{release}-cpu-dflash"
    found = next((p for p in sorted(folder.iterdir()) if "server_info" in p.name), None)
    assert found is not None
    report = look(release=None, server_info=json.loads(found.read_text()))
    assert report.sglang_version == release
    assert report.verdict is (Verdict.IGNORED if release == "0.5.11" else Verdict.ENFORCED)


def plugin_report(mode: str = "patched", window: int | None = WINDOW) -> dict[str, Any]:
    declared = [LayerWindow(i, WINDOW, causal=True) for i in range(5)] + [LayerWindow(5, None, causal=False)]
    live = [LayerWindow(i, window, causal=window is not None) for i in range(5)]
    return build(
        mode=mode, sglang="0.5.11", declared=declared, attended=[*live, LayerWindow(5, None, causal=False)]
    )


def test_the_plugin_s_report_counts_most_by_log_or_by_settings() -> None:
    by_log = look(release="0.5.11", log=[START, NONE_LINE, f"[2026 TP0] {log_line(plugin_report())}"])
    info = {
        "model_path": "/m", "version": "0.5.11", "speculative_dflash_draft_window_size": None,
        "internal_states": [{"dflash_sglang": plugin_report()}],
    }  # fmt: skip
    by_info = look(release=None, server_info=info, source=stock("0.5.11"))
    for report in (by_log, by_info):
        assert report.verdict is Verdict.ENFORCED
        assert attended(report) == ENFORCED_LAYERS
        assert report.layers[0].evidence[-1].strength is Strength.PLUGIN
        assert "patched" in finding(report, "plugin-reports")


def test_a_plugin_that_reports_full_layers_is_believed() -> None:
    report = look(release="0.5.14", log=[NONE_LINE, log_line(plugin_report("off", None))])
    assert report.verdict is Verdict.IGNORED
    assert attended(report) == FULL_LAYERS


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"layers": 3}', '{"layers": [{"layer": "x"}]}', '{"layers":[{"layer":0,"attended":"y"}]}'],
)
def test_a_broken_report_is_no_report(text: str) -> None:
    report = look(release="0.5.11", log=[NONE_LINE, f"dflash-sglang: windows {text}"])
    assert report.verdict is Verdict.IGNORED


def test_an_installed_plugin_that_says_nothing_is_told() -> None:
    files = {**stock("0.5.11").files, "dflash_sglang-0.1.0.dist-info/METADATA": b"Name: dflash-sglang"}
    report = look(release="0.5.11", source=MemoryTree("site-packages", files), log=[NONE_LINE])
    assert report.verdict is Verdict.IGNORED
    assert "plugin-silent" in codes(report)
    report = look(release="0.5.11", source=MemoryTree("site-packages", files))
    assert "plugin-installed" in codes(report)


def test_the_engine_s_line() -> None:
    line = (
        "dflash-engine: DFLASH drafter layers attend: 0 sliding_attention window=2048 causal; "
        "1 sliding_attention window=2048 causal; 2 full_attention window=None non-causal"
    )
    draft = config(num_hidden_layers=3, layer_types=["sliding_attention"] * 2 + ["full_attention"])
    report = look(draft, "0.5.11", log=[line])
    assert report.verdict is Verdict.ENFORCED


def test_a_server_that_runs_though_its_start_would_fail_is_unknown() -> None:
    info = {"model_path": "/m", "version": "0.5.14", "speculative_draft_window_size": None}
    report = look(config(use_sliding_window=False), release=None, server_info=info)
    assert report.verdict is Verdict.UNKNOWN
    assert "runs-though-start-fails" in codes(report)
    assert report.missing


@pytest.mark.parametrize(
    ("measured", "code"),
    [("enforced", "measured"), ("ignored", "measured-contradicts"), ("not distinguishable", "measured")],
)
def test_a_measurement_stands_beside_the_rest(measured: str, code: str) -> None:
    proof = Evidence(strength=Strength.MEASURED, where="1024 tokens", text="accept length 3.00 ± 0.10")
    report = look(release="0.5.14", measured=(proof,), measured_verdict=measured)
    assert code in codes(report)


def test_what_could_not_be_read_is_missing_and_the_release_is_no_fact_about_it() -> None:
    report = look(release="0.5.14", source_missing="/venv: it may not be read by this user")
    assert report.verdict is Verdict.UNKNOWN
    assert any("may not be read" in text for text in report.missing)
    assert "builds windows" in finding(report, "release-says")
    report = look(draft=b"", release="0.5.14")
    assert report.verdict is Verdict.UNKNOWN
    assert report.missing


def test_a_flag_below_the_block_is_refused_at_start() -> None:
    assert "flag-refused" in codes(look(flag=4))


def test_json_form() -> None:
    document = look(release="0.5.11", source=stock("0.5.11")).to_json()
    assert document["schema"] == 1
    assert document["verdict"] == "ignored"
    row = document["layers"][0]
    assert (row["index"], row["kind"], row["declared"], row["attended"]) == (
        0,
        "sliding_attention",
        2048,
        None,
    )
    assert (row["causal"], row["causal_declared"], row["agrees"]) == (False, True, False)
    assert {"severity", "code", "text", "evidence", "remedy"} <= set(document["findings"][0])
    assert document["remedies"][0]["kind"] == "plugin"
    assert json.dumps(document)
