"""What the installed SGLang makes of a drafter's config: its draft model evaluated, its identity, its
plugin.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_backend.audit.evaluator import Evaluator
from dflash_backend.audit.fingerprints import FINGERPRINTED, Identity, identify
from dflash_backend.audit.inputs import SourceTree
from dflash_backend.audit.paths import Oracle, Outcome, explore
from dflash_backend.audit.runner_path import (
    FIELD,
    NO_FLAG,
    WORKERS,
    FlagFacts,
    backend_reads_window,
    flag_facts,
    foreign_writes,
    names_used,
    runner_code,
    runner_window,
)
from dflash_backend.audit.source_files import (
    DFLASH,
    LOAD_UTILS,
    MODELS,
    RADIX,
    RUNNER,
    SPECULATIVE,
    SourceFiles,
    module_name,
    walk,
)
from dflash_backend.audit.transformers_view import TransformersView
from dflash_backend.audit.values import (
    Class,
    Config,
    GaveUpError,
    Instance,
    Made,
    RaisedError,
    Symbol,
    Unknown,
)
from dflash_backend.core.text import sanitise

DEFAULT_CLASS = "DFlashDraftModel"
_VERSION = re.compile(r"__version__\s*=\s*(?:version\s*=\s*)?['\"](?P<version>[^'\"\s]{1,60})['\"]")
_PLUGIN = re.compile(r"dflash_sglang-(?P<version>[0-9A-Za-z.+]{1,40})\.dist-info")
_INSTALLED = re.compile(r"sglang-(?P<version>[0-9A-Za-z.+]{1,40})\.dist-info")
_ENGINE_HOOKS = frozenset(
    {"forward", "__call__", "load_weights", "load_model", "post_load_weights", "named_parameters"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFact:
    """One layer as built. ``window`` counts the query's own position; None: no window.

    ``window_known`` and ``causal`` None say that the ways through the source disagree.
    """

    index: int
    window: int | None
    window_known: bool
    causal: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What a source tree does with the drafter's config."""

    where: str
    release: str | None = None
    identity: Identity
    model_class: str | None = None
    layers: tuple[LayerFact, ...] = ()
    fails: str = ""
    """Why the start fails whatever else is the case; empty when it does not."""
    may_fail: tuple[str, ...] = ()
    unknown: str = ""
    """Why the layers are not known; empty when they are."""
    conditions: tuple[str, ...] = ()
    """Conditions on which the layers depend."""
    runner_window: int | None = None
    """The window that the model runner knows, counted as SGLang does: positions before the query's own."""
    runner_known: bool = False
    flag: FlagFacts = NO_FLAG
    backend_reads: bool | None = None
    """Whether the draft attention backend looks at a layer's window; None when neither is known."""
    plugin: str | None = None
    problems: Mapping[str, str]

    @property
    def known(self) -> bool:
        """True when something of the layers, or a failing start, was established."""
        return bool(self.layers) or bool(self.fails)


def read_source(
    tree: SourceTree, view: TransformersView, layers: int | None = None, draft_backend: str | None = None
) -> SourceFacts:
    """Evaluates the tree for a config as ``transformers_view`` gives it. Never raises.

    ``layers`` is the number of layers that the config declares, for a check that all were found;
    ``draft_backend`` the drafter's attention backend, when it is known.
    """
    files = SourceFiles(tree)
    for path in FINGERPRINTED:
        files.data(path)
    release = _release(files)
    facts = SourceFacts(
        where=tree.where,
        release=release,
        identity=identify(files.read_so_far, release),
        flag=flag_facts(files),
        backend_reads=backend_reads_window(files, draft_backend) if draft_backend else None,
        plugin=_plugin(files),
        problems=files.problems,
    )
    if files.data(DFLASH) is None:
        why = files.problems.get(DFLASH)
        return replace(
            facts, unknown=f"models/dflash.py: {why}" if why else "there is no models/dflash.py in it"
        )
    if files.parsed(DFLASH) is None:
        return replace(facts, unknown=f"models/dflash.py: {files.problems.get(DFLASH, 'cannot be read')}")
    return _Evaluation(files, view, layers, facts).run()


def _release(files: SourceFiles) -> str | None:
    for path in ("sglang/_version.py", "sglang/version.py"):
        data = files.data(path)
        found = _VERSION.search(data[:8000].decode("utf-8", "replace")) if data else None
        if found:
            return sanitise(found["version"], multiline=False, limit=60)
    versions = [m["version"] for name in files.names("") if (m := _INSTALLED.fullmatch(name))]
    return sanitise(versions[0], multiline=False, limit=60) if len(versions) == 1 else None


def _plugin(files: SourceFiles) -> str | None:
    for name in files.names(""):
        if found := _PLUGIN.fullmatch(name):
            return sanitise(found["version"], multiline=False, limit=40)
    return None


class _Evaluation:
    """The draft model's constructor over every way through the source."""

    def __init__(
        self, files: SourceFiles, view: TransformersView, layers: int | None, facts: SourceFacts
    ) -> None:
        self.files = files
        self.view = view
        self.count = layers
        self.facts = facts
        self.ran: set[int] = set()
        self.sources = self._sources()
        self.runner = runner_code(files)

    def _sources(self) -> dict[str, ast.Module]:
        names = self.files.names(MODELS), self.files.names(SPECULATIVE)
        paths = [f"{MODELS}/{name}" for name in names[0] if re.fullmatch(r"dflash\w*\.py", name)]
        paths += [f"{SPECULATIVE}/{name}" for name in names[1] if re.fullmatch(r"dflash\w*\.py", name)]
        paths = [path for path in paths if "worker" not in path]
        wanted = [DFLASH, f"{SPECULATIVE}/dflash_utils.py", RADIX, "sglang/srt/configs/laguna.py", *paths]
        found = {}
        for path in dict.fromkeys(wanted[:40]):
            tree = self.files.parsed(path)
            if tree is not None:
                found[module_name(path)] = tree
        return found

    def run(self) -> SourceFacts:
        try:
            outcomes = explore(self._way)
        except GaveUpError as error:
            return replace(self.facts, unknown=f"the source could not be followed: {error}")
        return self._combine(outcomes)

    def _way(self, oracle: Oracle) -> tuple[str, Any, Any]:
        """(class, layers, runner's window) on one way."""
        evaluator = Evaluator(self.sources, oracle)
        cls = self._model_class(evaluator)
        config = Config(self.view.fresh(), self.view.unknown)
        model = evaluator.call(cls, (config,), {})
        layers = tuple(_attention(one) for one in _reachable(model))
        window: Any
        try:
            window = runner_window(evaluator, self.runner, model)
        except RaisedError as error:
            window = Unknown(str(error))
        self.ran |= evaluator.ran
        return cls.name, layers, window if window is None or isinstance(window, int) else Unknown("window")

    def _model_class(self, evaluator: Evaluator) -> Class:
        asked = self.view.values.get("architectures")
        names = [name for name in asked if isinstance(name, str)] if isinstance(asked, list) else []
        wanted = names[0] if names else DEFAULT_CLASS
        offered: list[str] = []
        for module in self.sources:
            if ".models." not in module:
                continue
            entry = evaluator.module(module).get("EntryClass")
            for cls in entry if isinstance(entry, list | tuple) else [entry]:
                if isinstance(cls, Class):
                    offered.append(cls.name)
                    if cls.name == wanted:
                        return cls
        if not offered:
            raise GaveUpError("the draft model's classes are not listed in EntryClass")
        shown = sanitise(wanted, multiline=False, limit=80)
        raise RaisedError(
            "ValueError", f"no DFLASH draft class {shown} here (it has {', '.join(offered[:8])})"
        )

    def _combine(self, outcomes: list[Outcome]) -> SourceFacts:
        good = [outcome for outcome in outcomes if outcome.raised is None]
        raised = [str(outcome.raised) for outcome in outcomes if outcome.raised is not None]
        if not good:
            text = sanitise(raised[0], multiline=False, limit=300)
            return replace(self.facts, fails=text)
        found = [outcome.value for outcome in good]
        facts = replace(
            self.facts,
            model_class=found[0][0],
            may_fail=tuple(dict.fromkeys(sanitise(one, multiline=False, limit=300) for one in raised))[:5],
            **_agreed_runner([value[2] for value in found]),
        )
        layers = self._agreed_layers([value[1] for value in found])
        if isinstance(layers, str):
            return replace(facts, unknown=layers)
        late = self._late_writes()
        if late:
            return replace(
                facts, unknown=f"the attention is changed after it was built, in {', '.join(late[:3])}"
            )
        unsure = any(not one.window_known or one.causal is None for one in layers)
        return replace(
            facts,
            layers=layers,
            conditions=_deciding(good) if unsure else (),
        )

    def _agreed_layers(self, ways: list[tuple[Any, ...]]) -> tuple[LayerFact, ...] | str:
        """What every way agrees on, or why there are no layers."""
        if any(len(way) != len(ways[0]) for way in ways) or not ways[0]:
            return "the layers' attention was not found in what the constructor makes"
        if self.count is not None and len(ways[0]) != self.count:
            return f"{len(ways[0])} attention layers were found for {self.count} that the config declares"
        layers = []
        for index in range(len(ways[0])):
            built = [way[index] for way in ways]
            windows = {_window(one[0]) for one in built}
            causal = {_causal(one[1]) for one in built}
            window = windows.pop() if len(windows) == 1 else "?"
            layers.append(
                LayerFact(
                    index=index,
                    window=window if isinstance(window, int) else None,
                    window_known=window != "?",
                    causal=causal.pop() if len(causal) == 1 else None,
                )
            )
        return tuple(layers)

    def _late_writes(self) -> list[str]:
        """Live code that changes a layer's attention and was not run with the constructor."""
        used: set[str] = set()
        for tree in self.sources.values():
            used |= names_used(tree)
        for path in WORKERS:
            tree_of_worker = self.files.parsed(path)
            used |= names_used(tree_of_worker) if tree_of_worker is not None else set()
        found = []
        for module, tree in self.sources.items():
            if module == module_name(RADIX):
                continue
            for function in walk(tree):
                if not isinstance(function, ast.FunctionDef) or id(function) in self.ran:
                    continue
                if function.name not in used and function.name not in _ENGINE_HOOKS:
                    continue
                found += [
                    f"{module.rsplit('.', 1)[-1]}.py:{node.lineno}"
                    for node in walk(function)
                    if isinstance(node, ast.Attribute)
                    and node.attr in (FIELD, "attn_type")
                    and isinstance(node.ctx, ast.Store)
                ]
        return found + foreign_writes(self.files, (*WORKERS, RUNNER, LOAD_UTILS))


def _agreed_runner(values: list[Any]) -> dict[str, Any]:
    known = all(value is None or isinstance(value, int) for value in values)
    same = known and len(set(values)) == 1
    return {"runner_window": values[0] if same else None, "runner_known": same}


def _deciding(outcomes: list[Outcome]) -> tuple[str, ...]:
    """Conditions that are answered both ways."""
    questions = dict.fromkeys(q for outcome in outcomes for q, _ in outcome.conditions)
    return tuple(sanitise(question.split(": ", 1)[-1], multiline=False, limit=120) for question in questions)[
        :5
    ]


def _reachable(model: Any) -> Iterator[Instance | Made]:
    """The attention layers that hang on the model, in the order in which they hang."""
    seen: set[int] = set()
    waiting: list[Any] = [model]
    rounds = 0
    while waiting and rounds < 50_000:
        rounds += 1
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += reversed(value)
            continue
        if isinstance(value, dict):
            waiting += reversed(list(value.values()))
            continue
        if not isinstance(value, Instance | Made) or id(value) in seen:
            continue
        seen.add(id(value))
        if _is_attention(value):
            yield value
        elif isinstance(value, Instance):
            waiting += reversed(list(value.attributes.values()))
        else:
            waiting += reversed([*value.positional, *value.attributes.values()])


def _is_attention(value: Instance | Made) -> bool:
    if isinstance(value, Made):
        return value.symbol.last == "RadixAttention"
    return any(
        cls.name == "RadixAttention"
        or any(isinstance(base, Symbol) and base.last == "RadixAttention" for base in cls.bases)
        for cls in value.cls.lineage()
    )


def _attention(layer: Instance | Made) -> tuple[Any, Any]:
    """(window as SGLang stores it, attention type) of a layer as it is at the end."""
    if isinstance(layer, Instance):
        return (
            layer.attributes.get(FIELD, Unknown("window")),
            layer.attributes.get("attn_type", Unknown("attention type")),
        )
    if "**" in layer.named:
        return Unknown("window"), Unknown("attention type")
    window = layer.attributes.get(FIELD, layer.named.get(FIELD, -1))
    kind = layer.attributes.get("attn_type", layer.named.get("attn_type", Symbol("AttentionType.DECODER")))
    # What the class of every release does with its argument.
    return (-1 if window == 0 or window is None else window), kind


def _window(value: Any) -> int | str | None:
    if isinstance(value, bool) or not isinstance(value, int | None):
        return "?"
    return None if value is None or value < 0 else value + 1


def _causal(value: Any) -> bool | None:
    name = value.last if isinstance(value, Symbol) else value
    if name in ("DECODER", "decoder"):
        return True
    if name in ("ENCODER_ONLY", "encoder_only"):
        return False
    return None
