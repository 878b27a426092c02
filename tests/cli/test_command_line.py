# ruff: noqa: E501  (one case a line reads better)
"""The command line as its users meet it: separate processes, exit codes, what is on which stream."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError, RefusedError
from dflash_console.cli import main as main_module
from dflash_console.cli.command import Group, Leaf
from dflash_console.cli.parsing import split
from dflash_console.cli.table import COMMANDS

DATA = Path(__file__).parent.parent / "data"
CONFIG = """\
[hosts.gpu1]
address = "gpu1.example"
python = "/opt/venv"
[servers.kimi]
host = "gpu1"
port = 30000
profile = "kimi-k26-chain"
[servers.bare]
host = "gpu1"
port = 30001
"""


def run(*words, stdin="", env=None, timeout=60):
    return subprocess.run(
        [sys.executable, "-m", "dflash_console", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return str(path)


def document(done):
    value = json.loads(done.stdout)
    assert value["schema"] == 1
    return value


# Finding commands


def test_help_names_every_command_and_the_exit_codes():
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert "130 interrupted" in done.stdout


def test_every_command_can_be_loaded_and_shows_help():
    for name in COMMANDS:
        command = main_module._load(name)
        leaves = command.commands.values() if isinstance(command, Group) else [command]
        assert all(isinstance(leaf, Leaf) and leaf.help for leaf in leaves), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profils"], "did you mean 'profiles'?"),
        (["profiles", "lst"], "did you mean 'list'?"),
        (["zzzzz"], "one of: "),
        (["profiles"], "a command is missing"),
        (["profiles", "list", "--jsn"], "did you mean --json?"),
        (["profiles", "show"], "the following arguments are required: profile"),
        (["profiles", "show", "a", "b"], "unrecognized arguments: b"),
        (["--confg", "x"], "did you mean --config?"),
        (["--config"], "expected one argument"),
        (["inspect", "x", "--rows", "many"], "invalid int value"),
        ([""], "there is no command ''"),
        (["\x1b[31mx"], "there is no command"),
    ],
)
def test_bad_usage_is_exit_2_with_the_nearest_name(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ([], None, [])),
        (["--read-only"], (["--read-only"], None, [])),
        (["--config", "f", "status", "--json"], (["--config", "f"], "status", ["--json"])),
        (["--config=f", "status"], (["--config=f"], "status", [])),
        (["status", "--config", "f"], ([], "status", ["--config", "f"])),
        (["--config"], (["--config"], None, [])),
    ],
)
def test_global_options_are_taken_before_the_command(argv, parts):
    assert split(argv) == parts


def test_global_options_are_taken_on_both_sides(config):
    for words in (
        ["--config", config, "--json", "hosts", "list"],
        ["hosts", "--config", config, "--json", "list"],
        ["hosts", "list", "--json", "--config", config],
    ):
        assert [h["name"] for h in document(run(*words))["hosts"]] == ["gpu1"]


# Errors


def test_errors_are_lines_on_stderr_and_with_json_a_document_as_well(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("red_only = true\n[hosts.a]\n")
    plain = run("--config", str(path), "hosts", "list")
    assert plain.returncode == 2
    assert plain.stdout == ""
    assert f"{path}:1: unknown key 'red_only' (did you mean 'read_only'?)" in plain.stderr
    assert f"{path}:2: 'hosts.a' the key 'address' is missing" in plain.stderr
    done = run("--config", str(path), "hosts", "list", "--json")
    assert done.returncode == 2
    error = document(done)["error"]
    assert error["kind"] == "config"
    assert error["exit_code"] == 2
    assert len(error["lines"]) == 2
    usage = run("nonsense", "--json")
    assert document(usage)["error"]["kind"] == "usage"


def test_no_configuration_says_how_to_get_one():
    done = run("hosts", "list")
    assert done.returncode == 2
    assert "info --example" in done.stderr


def test_the_example_from_info_is_a_working_configuration(tmp_path):
    example = run("info", "--example")
    path = tmp_path / "c.toml"
    path.write_text(example.stdout)
    assert document(run("--config", str(path), "--json", "hosts", "list"))["hosts"][0]["name"] == "gpu1"


def test_a_broken_pipe_is_silent():
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    done = subprocess.run(
        [sys.executable, "-m", "dflash_console", "profiles", "list"],
        stdout=reader.stdin, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 141
    assert done.stderr == ""


def test_output_never_fails_for_want_of_a_character():
    done = run("profiles", "diff", "kimi-k26-chain", "kimi-k26-ddtree8", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert done.stdout.isascii()


def _leaf(monkeypatch, run_):
    monkeypatch.setattr(main_module, "_load", lambda name: Leaf(help="h", run=run_))


def test_errors_inside_task_groups_keep_their_exit_code(monkeypatch, capsys):
    def fail(args, context):
        raise ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [RefusedError("not ours")])])

    _leaf(monkeypatch, fail)
    assert main_module.main(["info"]) == 4
    assert "not ours" in capsys.readouterr().err


@pytest.mark.parametrize(("acting", "code"), [(False, 5), (True, 6)])
def test_a_mistake_of_ours_is_told_without_traceback_values_or_secrets(
    monkeypatch, capsys, isolated_home, acting, code
):
    def crash(args, context):
        if acting:
            context.began("kimi was stopped")
        hidden = "hf_abcdefghijklmnopqrstuvwx"
        raise TypeError(f"bad --api-key {hidden}")

    _leaf(monkeypatch, crash)
    assert main_module.main(["info"]) == code
    said = capsys.readouterr().err
    assert "internal error: TypeError" in said
    assert ("kimi was stopped" in said) == acting
    report = isolated_home / ".local/state/dflash-console/crash.txt"
    assert "in crash" in report.read_text()
    assert "hf_abc" not in report.read_text() + said
    assert report.stat().st_mode & 0o077 == 0


def test_an_interrupt_says_what_state_was_left(monkeypatch, capsys):
    def interrupted(args, context):
        context.began("kimi goes on starting")
        raise KeyboardInterrupt

    _leaf(monkeypatch, interrupted)
    assert main_module.main(["info"]) == 130
    assert "interrupted: kimi goes on starting" in capsys.readouterr().err


def test_a_failed_action_has_its_own_exit_code(monkeypatch, capsys):
    async def fail(args, context):
        raise FailedError("it did not start", unchanged="what ran before runs again")

    _leaf(monkeypatch, fail)
    assert main_module.main(["info"]) == 5
    assert "unchanged: what ran before runs again" in capsys.readouterr().err


def test_ctrl_c_ends_a_question_at_once(tmp_path):
    """In a real terminal, inside an event loop: asyncio's own handler would wait for the line's end."""
    script = (
        "import asyncio\nfrom dflash_console.cli.asking import typed_yes\n"
        "async def ask():\n    print('asked', flush=True)\n    return typed_yes()\n"
        "try:\n    asyncio.run(ask())\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=slave, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "asked\n"
        deadline = time.monotonic() + 20
        said = ""
        while said == "" and time.monotonic() < deadline:
            # Again and again: the read may not have begun when the first one comes.
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            said = child.stdout.read()
        assert said == "interrupted\n"
    finally:
        child.kill()
        child.wait()
        os.close(master)
        os.close(slave)


# Commands


def test_profiles_list_as_text_and_json():
    text = run("profiles", "list")
    assert text.returncode == 0
    assert "kimi-k26-ddtree8" in text.stdout
    rows = document(run("profiles", "list", "--json"))["profiles"]
    kimi = next(row for row in rows if row["name"] == "kimi-k26-ddtree8")
    assert (kimi["algorithm"], kimi["budget"], kimi["shipped"], kimi["error"]) == ("DDTREE", 8, True, None)


def test_a_damaged_profile_is_a_row_and_exit_2(tmp_path, config):
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "bad.toml").write_text("targt = 1\n")
    (folder / "ref-ar.toml").write_text('extends = "ref-ar"\n')
    done = run("--config", config, "profiles", "list")
    assert done.returncode == 2
    assert "bad.toml:1: unknown key 'targt' (did you mean 'target'?)" in done.stderr
    assert "kimi-k26-ar" in done.stdout
    assert "hides" in done.stderr


def test_profiles_show_diff_validate_and_new(tmp_path, config):
    base = ["--config", config]
    shown = document(run(*base, "profiles", "show", "ref-ddtree32", "--json"))
    assert shown["profile"]["budget"] == 32
    assert [Path(p).stem for p in shown["chain"]] == ["ref-ddtree32", "ref-ddtree16", "ref-chain", "ref-ar"]
    new = run(*base, "profiles", "new", "mine", "--from", "ref-chain")
    assert new.returncode == 0
    path = Path(new.stdout.strip())
    assert path == tmp_path / "profiles" / "mine.toml"
    same = run(*base, "profiles", "diff", "ref-chain", "mine", "--json")
    assert same.returncode == 0
    assert document(same)["same_launch"] is True
    again = run(*base, "profiles", "new", "mine", "--from", "ref-chain")
    assert again.returncode == 2
    assert "already a profile" in again.stderr
    differs = run(*base, "profiles", "diff", "ref-ar", str(path))
    assert differs.returncode == 1
    path.write_text('extends = "kimi-k26-ar"\n[options]\nmem-fractoin-static = 1\n')
    done = run(*base, "profiles", "validate", "mine")
    assert done.returncode == 2
    assert f"{path}:3: no SGLang release has an option --mem-fractoin-static" in done.stdout
    tree = run(*base, "profiles", "validate", "kimi-k26-ddtree8", "--sglang-version", "0.5.14", "--json")
    assert tree.returncode == 1
    assert "DDTREE is in no SGLang release" in document(tree)["results"][0]["releases"][0]["refusals"][0]


def test_read_only_writes_no_profile(tmp_path, config):
    done = run("--config", config, "--read-only", "profiles", "new", "mine")
    assert done.returncode == 4
    assert "read-only" in done.stderr
    assert not (tmp_path / "profiles").exists()


def test_every_shipped_profile_validates():
    done = run("profiles", "validate", "--json")
    assert done.returncode == 0, done.stdout
    assert all(result["ok"] for result in document(done)["results"])


def test_plan_without_a_host(config):
    done = run("--config", config, "plan", "kimi", "--sglang-version", "0.5.11", "--json")
    assert done.returncode == 0
    plan = document(done)
    assert plan["argv"][:3] == ["/opt/venv/bin/python", "-m", "sglang.launch_server"]
    assert plan["argv"][plan["argv"].index("--port") + 1] == "30000"
    assert any(w["dangerous"] for w in plan["warnings"])
    assert any("collapses beyond" in w["text"] for w in plan["warnings"])
    refused = run("plan", "--profile", "kimi-k26-ddtree8", "--sglang-version", "0.5.23")
    assert refused.returncode == 1
    assert "refused: DDTREE is in no SGLang release" in refused.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plan"], 2, "which server?"),
        (["plan", "kimmi", "--sglang-version", "0.5.14"], 2, "did you mean 'kimi'?"),
        (["plan", "bare", "--sglang-version", "0.5.14"], 2, "which profile?"),
        (
            ["plan", "kimi", "--profile", "nope", "--sglang-version", "0.5.14"],
            2,
            "there is no profile 'nope'",
        ),
        (["plan", "kimi", "--sglang-version", "0.5.10"], 4, "too old"),
        (["plan", "kimi", "--sglang-version", "x"], 2, "is not a version"),
        (["hosts", "trust", "gpu2"], 2, "did you mean 'gpu1'?"),
        (["--read-only", "hosts", "trust", "gpu1"], 4, "read-only"),
        (["--read-only", "hosts", "forget", "gpu1"], 4, "read-only"),
    ],
)
def test_what_a_command_refuses(config, words, code, said):
    done = run("--config", config, *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def test_info_names_every_path_even_with_a_broken_configuration(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[[[")
    paths = document(run("--config", str(path), "info", "--json"))["paths"]
    assert paths["configuration"] == {"path": str(path), "exists": True}
    assert set(paths) >= {"profiles", "shipped_profiles", "state", "data", "cache"}


@pytest.mark.parametrize("file", sorted((DATA / "samples").iterdir()), ids=lambda path: path.name)
def test_inspect_reads_every_sample(file, capsys):
    assert main_module.main(["inspect", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["kind"]
    assert main_module.main(["inspect", str(file)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_inspect_of_no_file():
    done = run("inspect", "/no/such/file")
    assert done.returncode == 2
    assert "/no/such/file" in done.stderr


def test_the_engine_shows_its_own_help():
    done = run("engine", "serve", "--help")
    assert done.returncode == 0
    assert "--speculative-ddtree-budget" in done.stdout


# Hygiene


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["profiles", "list"], ["profiles", "validate"], ["info"], ["hosts", "list"]],
)
def test_light_commands_import_nothing_heavy(words, config):
    code = (
        "import sys\nfrom dflash_console.cli.main import main\n"
        f"main({['--config', config, *words]!r})\n"
        "heavy = {'textual', 'rich', 'asyncssh', 'aiohttp', 'numpy', 'prometheus_client', 'cryptography', 'asyncio'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    heavy = done.stderr.rsplit("HEAVY ", 1)[1].strip()
    assert heavy == "[]"
