"""Job files: strict, with file and line; prompts from three sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_backend.bench.job import load_job, parse_job
from dflash_backend.bench.jobs import job_names, named_job
from dflash_backend.bench.prompts import builtin, digest, warm_up, with_nonce
from dflash_backend.core.errors import ConfigError, UsageError


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "first-look.toml"
    path.write_text("")
    job = load_job(path)
    assert (job.name, job.concurrency, job.output_tokens, job.repeats) == ("first-look", (1,), 128, 1)
    assert (job.temperature, job.ignore_eos, job.route) == (0.0, False, "generate")
    assert job.prompts == builtin("mixed")
    assert (job.requests_at(1), job.requests_at(4), job.warmups_at(4)) == (8, 16, 4)


def test_jobs_have_names_and_one_is_always_there(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    assert job_names(config) == job_names(None) == ("first-look",)
    assert named_job("first-look", None).concurrency == (1, 4)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "long.toml").write_text("output_tokens = 1024\n")
    (tmp_path / "jobs" / "first-look.toml").write_text("repeats = 3\n")
    assert job_names(config) == ("first-look", "long")
    assert named_job("long", config).output_tokens == 1024
    assert named_job("first-look", config).repeats == 3
    with pytest.raises(UsageError, match="no job 'short'"):
        named_job("short", config)


def test_everything(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n\n"two"\n{"text": "three"}\n')
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "x"\ndescription = "d"\nconcurrency = [1, 8]\noutput_tokens = 32\nrequests = 3\nrepeats = 2\n'
        'warmup_requests = 0\ntemperature = 0.7\nignore_eos = true\nroute = "chat"\nrequest_timeout_s = 9\n'
        '[prompts]\nfile = "p.jsonl"\n'
    )
    job = load_job(path)
    assert job.prompts == ("one", "two", "three")
    assert (job.concurrency, job.requests_at(8), job.warmups_at(8), job.route) == ((1, 8), 3, 0, "chat")


def test_prompts_in_blocks_and_inline(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\nstill one\n\n\n\ntwo\n")
    job = parse_job('[prompts]\nfile = "p.txt"', path=str(tmp_path / "job.toml"))
    assert job.prompts == ("one\nstill one", "two")
    assert parse_job('[prompts]\ninline = ["a", "b"]').prompts == ("a", "b")


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        ("concurency = 3", "job.toml:1", "concurrency"),
        ("\nconcurrency = 0", "job.toml:2", "1 to 1024"),
        ("concurrency = []", "job.toml:1", "empty list"),
        ("concurrency = [2, 2]", "job.toml:1", "twice"),
        ("requests = 1\nroute = 'x'", "job.toml:2", "generate"),
        ("output_tokens = '5'", "job.toml:1", "whole number"),
        ("[prompts]\nbuiltin = 'code'\ninline = ['x']", "job.toml:3", "only one"),
        ("[prompts]\ninline = []", "job.toml:2", "at least one"),
        ("name = 'a/b'", "job.toml:1", "name"),
        ("\nname = ,", "job.toml:2", "TOML"),
    ],
)
def test_mistakes(text: str, where: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(text)
    shown = str(caught.value)
    assert where in shown
    assert part in shown


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": 3}\n', ":2"),
        ("p.jsonl", "{\n", ":1"),
        ("p.txt", "\n\n", "no prompt"),
    ],
)
def test_bad_prompts_files(tmp_path: Path, name: str, content: str, line: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=line):
        parse_job(f'[prompts]\nfile = "{name}"', path=str(tmp_path / "job.toml"))


def test_missing_job_and_prompts_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such job file"):
        load_job(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="no such prompts file"):
        parse_job('[prompts]\nfile = "none.txt"', path=str(tmp_path / "job.toml"))


def test_builtin_prompts_are_distinct_and_warm_up_is_apart() -> None:
    measured = builtin("mixed")
    assert len(measured) == len(set(measured)) == 24
    assert set(measured) == {*builtin("code"), *builtin("prose")}
    assert not set(measured) & set(warm_up())
    assert all(40 < len(prompt) < 2000 for prompt in (*measured, *warm_up()))
    assert digest(measured) != digest(measured[::-1])
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert with_nonce("x", "n1") == "[n1] x"


def test_cell_keys_name_what_decides_the_result() -> None:
    job = parse_job("concurrency = [1, 2]\nrequests = 4")
    same = parse_job("name = 'other'\nconcurrency = [2]\nrequests = 4\ndescription = 'words'")
    longer = parse_job("concurrency = [1, 2]\nrequests = 4\noutput_tokens = 9")
    assert job.cell_key(2, "s") == same.cell_key(2, "s")
    assert (
        len({job.cell_key(1, "s"), job.cell_key(2, "s"), job.cell_key(2, "t"), longer.cell_key(2, "s")}) == 4
    )
