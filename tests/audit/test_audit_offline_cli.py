"""``audit`` on files, by the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from audit_cases import LOG_LINE, config

from dflash_backend.audit.trees import open_source
from dflash_backend.core.errors import ConfigError
from dflash_console.cli.main import main
from rigs.sglang_sources import stock, wheel

ENFORCED, GAP, UNREADABLE = 0, 1, 2


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    path = tmp_path / "drafter" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config()))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["audit", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)


def test_text_shows_a_bar_per_layer_the_evidence_and_the_remedy(
    draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--draft-config", draft, "--sglang-version", "0.5.11")
    assert code == GAP
    lines = out.splitlines()
    assert "ignored" in lines[0]
    bars = [line for line in lines if "declared" in line and "█" in line]
    assert len(bars) == 6
    assert "┊" in bars[0]
    assert "┊" not in bars[5]
    assert "declared causal" in bars[0]
    assert "[release] SGLang 0.5.11" in out
    assert "remedy (plugin)" in out
    assert "pip install sglang==0.5.14" in out


@pytest.mark.parametrize(
    ("version", "flag", "verdict", "code"),
    [
        ("0.5.11", None, "ignored", GAP),
        ("0.5.11", 2048, "clamped", GAP),
        ("0.5.14", None, "enforced", ENFORCED),
        ("0.5.14", 2048, "enforced", ENFORCED),
        ("0.5.10", None, "unknown", GAP),
    ],
)
def test_verdict_and_exit_code(
    draft: Path, capsys: pytest.CaptureFixture[str], version: str, flag: int | None, verdict: str, code: int
) -> None:
    words = ["--draft-window", flag] if flag else []
    found, report = document(capsys, "--draft-config", draft, "--sglang-version", version, *words)
    assert (found, report["verdict"], report["schema"]) == (code, verdict, 1)
    assert {"layers", "cached_window", "compact_cache", "findings", "remedies"} <= set(report)


def test_the_drafter_s_folder_its_log_and_a_wheel(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"noise\n{LOG_LINE.format(window=None, compact=False)}\nmore\n")
    code, report = document(capsys, "--draft-config", draft.parent, "--log", log, "--source", wheel("0.5.14"))
    assert (code, report["verdict"], report["sglang_version"]) == (ENFORCED, "enforced", "0.5.14")
    assert any(one["code"] == "log-says-nothing" for one in report["findings"])


def install(root: Path, release: str = "0.5.14") -> Path:
    for name, data in stock(release).files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return root


@pytest.mark.parametrize("shape", ["site-packages", "package", "venv", "checkout", "editable", "direct url"])
def test_shapes_of_an_installation(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    root = tmp_path / "x"
    match shape:
        case "site-packages":
            source = install(root)
        case "package":
            source = install(root) / "sglang"
        case "venv":
            install(root / "lib" / "python3.12" / "site-packages")
            source = root
        case "checkout":
            install(root / "python")
            source = root
        case _:
            install(tmp_path / "checkout" / "python")
            site = root / "lib" / "python3.12" / "site-packages"
            site.mkdir(parents=True)
            source = site
            if shape == "editable":
                (site / "__editable__.sglang-0.5.14.pth").write_text(f"{tmp_path}/checkout/python\n")
            else:
                info = site / "sglang-0.5.14.dist-info"
                info.mkdir()
                url = f"file://{tmp_path}/checkout/python"
                (info / "direct_url.json").write_text(
                    json.dumps({"url": url, "dir_info": {"editable": True}})
                )
    code, report = document(capsys, "--draft-config", draft, "--source", source)
    assert (code, report["verdict"], report["sglang_version"]) == (ENFORCED, "enforced", "0.5.14")


def test_two_installations_are_not_chosen_between(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for python in ("python3.11", "python3.12"):
        install(tmp_path / "venv" / "lib" / python / "site-packages")
    words = ["--draft-config", draft, "--sglang-version", "0.5.14", "--source", tmp_path / "venv"]
    code, report = document(capsys, *words)
    assert (code, report["verdict"]) == (GAP, "unknown")
    assert "more than one SGLang" in report["missing"][0]


@pytest.mark.skipif(os.geteuid() == 0, reason="the super user may read everything")
def test_files_that_may_not_be_read(draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = install(tmp_path / "x")
    (root / "sglang/srt/models/dflash.py").chmod(0)
    code, report = document(capsys, "--draft-config", draft, "--source", root, "--sglang-version", "0.5.14")
    assert (code, report["verdict"]) == (GAP, "unknown")
    assert "Permission denied" in report["missing"][0]


def test_a_file_that_cannot_be_read_is_unknown_and_says_why(draft: Path, tmp_path: Path) -> None:
    root = install(tmp_path / "x")
    (root / "sglang/srt/models/dflash.py").unlink()
    (root / "sglang/srt/models/dflash.py").mkdir()
    from audit_cases import look

    report = look(config(), "0.5.14", source=open_source(root))
    assert report.verdict == "unknown"
    assert "no regular file" in report.missing[0]


@pytest.mark.parametrize("kind", ["empty folder", "no wheel", "cut wheel", "other zip"])
def test_sources_that_are_none(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "source.whl"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "no wheel":
        path.write_bytes(b"hello")
    elif kind == "cut wheel":
        path.write_bytes(wheel("0.5.14").read_bytes()[:200_000])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other/x.py", "")
    code, report = document(capsys, "--draft-config", draft, "--sglang-version", "0.5.14", "--source", path)
    assert (code, report["verdict"]) == (GAP, "unknown")
    assert report["missing"]
    assert run(capsys, "--draft-config", draft, "--source", path)[0] == UNREADABLE
    with pytest.raises(ConfigError):
        open_source(path)


def half(path: Path) -> None:
    path.write_text(json.dumps(config())[:300])


def huge(path: Path) -> None:
    path.write_bytes(b'{"a": "' + b"x" * 50_000_000 + b'"}')


def hostile(path: Path) -> None:
    path.write_text(
        json.dumps(config(model_type="\x1b]0;owned\x07\u202eqwen3", architectures=["\x1b[2J" * 99]))
    )


UNREADABLES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half written": half,
    "50 MB": huge,
    "not JSON": lambda path: path.write_text("hello"),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff\xfe"}'),
    "a list": lambda path: path.write_text("[1, 2]"),
    "null": lambda path: path.write_text("null"),
    "no model": lambda path: path.write_text('{"hello": 1}'),
    "nested deeply": lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
    "an object nested deeply": lambda path: path.write_text('{"architectures": ' * 3000 + "1" + "}" * 3000),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", UNREADABLES)
def test_unreadable_configs_are_a_plain_message(
    draft: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    UNREADABLES[name](draft)
    code, out, err = run(capsys, "--draft-config", draft, "--sglang-version", "0.5.14")
    assert code == UNREADABLE
    assert not out
    assert "Traceback" not in err
    assert 0 < len(err.splitlines()) <= 4


def test_hostile_strings_reach_no_terminal(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile(draft)
    code, out, err = run(capsys, "--draft-config", draft, "--sglang-version", "0.5.14")
    assert code == GAP
    assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    _, text, _ = run(capsys, "--draft-config", draft, "--sglang-version", "0.5.14", "--json")
    assert not {"\x1b", "\u202e"} & set(json.loads(text)["findings"][0]["text"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--draft-config", "{draft}"],
        ["--sglang-version", "0.5.14"],
        ["--draft-config", "{draft}", "--sglang-version", "latest"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--draft-window", "many"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--draft-window", "0"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--log", "/nowhere/server.log"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--source", "/nowhere"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--target-config", "/nowhere"],
        ["--draft-config", "{draft}", "--sglang-version", "0.5.14", "--compute-capability", "new"],
        ["server", "--draft-config", "{draft}"],
    ],
)
def test_wrong_usage(draft: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, _, err = run(capsys, *[word.format(draft=draft) for word in words])
    assert code == UNREADABLE
    assert err


def test_ddtree_by_target_and_gpu(draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target.json"
    target.write_text(json.dumps({"model_type": "kimi_k2", "num_hidden_layers": 61, "kv_lora_rank": 512}))
    words = ["--sglang-version", "0.5.14", "--target-config", target, "--compute-capability", "12.0"]
    _, out, _ = run(capsys, "--draft-config", draft, *words)
    assert "--attention-backend triton" in out


def test_a_log_of_a_hundred_megabytes_is_read_line_by_line(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.write(LOG_LINE.format(window=1024, compact=True).encode() + b"\n")
        for _ in range(100):
            file.write(b"\x00\xff" * 1000 + b"x" * 1_000_000)
        file.write(b"\n" + LOG_LINE.format(window=None, compact=False).encode())
    code, report = document(capsys, "--draft-config", draft, "--sglang-version", "0.5.14", "--log", log)
    assert (code, report["cached_window"], report["compact_cache"]) == (ENFORCED, None, False)


def test_nothing_of_the_tree_is_run_or_written(draft: Path, tmp_path: Path) -> None:
    root = install(tmp_path / "x")
    marker = tmp_path / "was-run"
    model = root / "sglang/srt/models/dflash.py"
    model.write_text(f"open({str(marker)!r}, 'w').write('x')\n" + model.read_text())
    (root / "sglang/__init__.py").write_text(f"open({str(marker)!r}, 'w').write('x')\n")
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    call = "import sys; from dflash_console.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["audit", "--draft-config", str(draft), "--source", str(root)]
    done = subprocess.run(
        [sys.executable, "-c", call, *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == ENFORCED, done.stderr
    assert "enforced" in done.stdout
    assert "hand-patched" in done.stdout
    assert not marker.exists()
    assert before == {p: p.stat().st_mtime_ns for p in root.rglob("*")}
