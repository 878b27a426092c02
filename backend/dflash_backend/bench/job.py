"""Benchmark jobs: strict TOML files that say what to ask and how often.

name = "first-look"
concurrency = [1, 4]
output_tokens = 128
requests = 16

[prompts]
builtin = "mixed"           # or inline = ["…"], or file = "prompts.jsonl" beside this file
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dflash_backend.bench.prompts import builtin, digest
from dflash_backend.config.toml import FileError, Problem, TomlFile, load_toml, parse_toml, read_text
from dflash_backend.core.text import sanitise

Route = Literal["generate", "completions", "chat"]
"""``generate``: SGLang's own, which tells tokens per chunk; the others are OpenAI's."""

MAX_CONCURRENCY = 1024
MAX_PROMPTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as read. ``requests`` is per repeat of a cell; None: four times the concurrency, at least 8."""

    name: str
    description: str = ""
    prompts: tuple[str, ...] = field(repr=False)
    prompts_source: str = "builtin:mixed"
    concurrency: tuple[int, ...] = (1,)
    output_tokens: int = 128
    requests: int | None = None
    repeats: int = 1
    warmup_requests: int | None = None
    """Per repeat; None: as many as the concurrency. 0: none, and the cell says so."""
    temperature: float = 0.0
    ignore_eos: bool = False
    """Fixed length: every answer has ``output_tokens``. Biases acceptance, so it is off by default."""
    route: Route = "generate"
    request_timeout_s: float = 600.0
    origin: str = ""

    @property
    def prompts_digest(self) -> str:
        """SHA-256 over the prompts."""
        return digest(self.prompts)

    def requests_at(self, concurrency: int) -> int:
        """Requests measured in one repeat at a concurrency."""
        return self.requests if self.requests is not None else max(8, 4 * concurrency)

    def warmups_at(self, concurrency: int) -> int:
        """Requests that warm up one repeat at a concurrency."""
        return concurrency if self.warmup_requests is None else self.warmup_requests

    def settings(self) -> dict[str, object]:
        """Everything that decides a result, as plain JSON; prompts by their digest."""
        values = asdict(self)
        del values["prompts"], values["origin"]
        values["concurrency"] = list(self.concurrency)
        return {**values, "prompts_digest": self.prompts_digest, "prompts_count": len(self.prompts)}

    def cell_key(self, concurrency: int, server_digest: str) -> str:
        """Names one cell by everything that decides its result: same key, same measurement."""
        settings = {
            k: v for k, v in self.settings().items() if k not in ("name", "description", "concurrency")
        }
        text = json.dumps([settings, concurrency, server_digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_COUNT = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_NAME = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class PromptsTable(msgspec.Struct, forbid_unknown_fields=True):
    """``[prompts]``: exactly one of the three; none means the built-in mixed set."""

    builtin: Literal["mixed", "code", "prose"] | None = None
    inline: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    file: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class JobTable(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    name: _NAME | None = None
    description: str = ""
    prompts: PromptsTable = msgspec.field(default_factory=PromptsTable)
    concurrency: (
        Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENCY)]
        | list[Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENCY)]]
    ) = 1
    output_tokens: _COUNT = 128
    requests: _COUNT | None = None
    repeats: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    warmup_requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.0
    ignore_eos: bool = False
    route: Literal["generate", "completions", "chat"] = "generate"
    request_timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)] = 600.0


def load_job(path: str | Path) -> Job:
    """Reads a job file. Raises FileError (a ConfigError) with file, line and every mistake in it."""
    return _job(load_toml(path, JobTable, what="job file", private=False), Path(path))


def parse_job(text: str, *, path: str = "job.toml") -> Job:
    """Like ``load_job`` for a text in hand; a prompts file is looked for beside ``path``."""
    return _job(parse_toml(text, JobTable, path=path), Path(path))


def _job(file: TomlFile[JobTable], path: Path) -> Job:
    table = file.value
    asked = table.concurrency if isinstance(table.concurrency, list) else [table.concurrency]
    problems: list[Problem] = []
    if not asked:
        problems.append(file.problem(("concurrency",), "is an empty list: give at least one number"))
    if len(set(asked)) != len(asked):
        problems.append(file.problem(("concurrency",), "names the same concurrency twice"))
    source, prompts = _prompts(file, path, problems)
    if problems:
        raise FileError(problems)
    return Job(
        name=table.name or path.stem,
        description=sanitise(table.description, multiline=False, limit=500),
        prompts=prompts,
        prompts_source=source,
        concurrency=tuple(asked),
        output_tokens=table.output_tokens,
        requests=table.requests,
        repeats=table.repeats,
        warmup_requests=table.warmup_requests,
        temperature=float(table.temperature),
        ignore_eos=table.ignore_eos,
        route=table.route,
        request_timeout_s=float(table.request_timeout_s),
        origin=file.path,
    )


def _prompts(file: TomlFile[JobTable], path: Path, problems: list[Problem]) -> tuple[str, tuple[str, ...]]:
    table = file.value.prompts
    given = [name for name in ("builtin", "inline", "file") if getattr(table, name) is not None]
    if len(given) > 1:
        problems.append(file.problem(("prompts", given[1]), f"'{given[0]}' is given too: only one of them"))
        return "", ()
    if table.inline is not None:
        if not table.inline:
            problems.append(file.problem(("prompts", "inline"), "is an empty list: give at least one prompt"))
        return "inline", tuple(table.inline)
    if table.file is not None:
        where = Path(table.file).expanduser()
        return f"file:{table.file}", read_prompts(where if where.is_absolute() else path.parent / where)
    name = table.builtin or "mixed"
    return f"builtin:{name}", builtin(name)


def read_prompts(path: Path) -> tuple[str, ...]:
    """Prompts from a file: ``.jsonl`` (text, or objects with prompt/text), else blocks between blank lines.

    Raises FileError (a ConfigError) for a file that cannot be read, has none, or a line that is no prompt.
    """
    text = read_text(path, what="prompts file", private=False)
    shown = sanitise(str(path), multiline=False)
    if path.suffix in (".jsonl", ".ndjson"):
        prompts = [
            _json_prompt(line, shown, number)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    else:
        prompts = [block.strip() for block in text.replace("\r\n", "\n").split("\n\n") if block.strip()]
    if not prompts:
        raise FileError([Problem(path=shown, line=None, text="holds no prompt")])
    if len(prompts) > MAX_PROMPTS:
        raise FileError([Problem(path=shown, line=None, text=f"holds over {MAX_PROMPTS} prompts")])
    return tuple(prompts)


def _json_prompt(line: str, path: str, number: int) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise FileError([Problem(path=path, line=number, text="is not valid JSON")]) from None
    if isinstance(value, dict):
        value = value.get("prompt", value.get("text"))
    if not isinstance(value, str) or not value.strip():
        raise FileError(
            [Problem(path=path, line=number, text="holds no prompt: give text, or an object with 'prompt'")]
        )
    return value
