"""The registry of actions: one list feeds bindings, key bar, help, palette and the user's keymap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dflash_backend.control.contract import Action, Decision
from dflash_console.tui.deciders import (
    ALLOWED,
    Context,
    Decide,
    adopt,
    audit,
    bench,
    bench_run,
    bench_stop,
    cancel,
    forget,
    host_care,
    measure,
    on_server,
    refused,
    retry,
    start_stop,
    start_stop_title,
    trust,
    with_server,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """One action. ``where`` are screen names, ``footer`` its place in the key bar (0: not there)."""

    id: str
    key: str
    title: str
    description: str
    where: frozenset[str]
    decide: Decide = lambda context: ALLOWED
    footer: int = 0
    group: str = "general"
    label: Callable[[Context], str] | None = None
    """The title when it depends on what is selected."""

    def title_in(self, context: Context | None) -> str:
        """The title as shown now."""
        return self.label(context) if self.label and context else self.title


FLEET, SERVER, PICKER, PROGRESS, BENCH, HOSTS, LOG, AUDIT = SCREENS = (
    "fleet",
    "server",
    "picker",
    "progress",
    "bench",
    "hosts",
    "log",
    "audit",
)
_ALL = frozenset(SCREENS)
_MAIN = _ALL - {PICKER}
_SERVERS = frozenset({FLEET, SERVER})
_LOGS = frozenset({SERVER, LOG})


def _pinned(number: int) -> ActionSpec:
    def decide(context: Context) -> Decision:
        if number > len(context.services.pinned):
            return refused(f"no profile is pinned to {number}: see `pinned` in the configuration")
        return on_server(context)

    def label(context: Context) -> str:
        pinned = context.services.pinned
        return f"profile {pinned[number - 1]}" if number <= len(pinned) else "pinned profile"

    return ActionSpec(
        id=f"pin-{number}",
        key=str(number),
        title=f"pinned profile {number}",
        description="Show what applying this pinned profile would change.",
        where=_SERVERS,
        decide=decide,
        group="profiles",
        label=label,
    )


ACTIONS: Final[tuple[ActionSpec, ...]] = (
    ActionSpec(
        id="open",
        key="enter",
        title="open",
        description="Open what is selected.",
        where=frozenset({FLEET}),
        decide=on_server,
        footer=10,
        group="servers",
    ),
    ActionSpec(
        id="profile",
        key="p",
        title="profile",
        description="Choose another profile; every change and the exact command are shown first.",
        where=_SERVERS | {AUDIT},
        decide=on_server,
        footer=11,
        group="profiles",
    ),
    ActionSpec(
        id="audit",
        key="a",
        title="audit",
        description="Compare the drafter's declared window with what is attended and cached.",
        where=_SERVERS,
        decide=audit,
        footer=12,
        group="servers",
    ),
    ActionSpec(
        id="audit-refresh",
        key="r",
        title="refresh",
        description="Read config, arguments, log and sources again.",
        where=frozenset({AUDIT}),
        decide=audit,
        footer=12,
        group="servers",
    ),
    ActionSpec(
        id="measure",
        key="m",
        title="measure",
        description="Measure accept length against context length; asks first. Again: give it up.",
        where=frozenset({AUDIT}),
        decide=measure,
        footer=13,
        group="servers",
    ),
    ActionSpec(
        id="bench",
        key="b",
        title="bench",
        description="Benchmarks: run a job against the selected server, see earlier runs.",
        where=_SERVERS,
        decide=bench,
        footer=13,
        group="benchmarks",
    ),
    ActionSpec(
        id="logs",
        key="l",
        title="logs",
        description="The server's log on the whole screen.",
        where=_SERVERS,
        decide=on_server,
        footer=14,
        group="servers",
    ),
    ActionSpec(
        id="start-stop",
        key="s",
        title="start/stop",
        description="Start a stopped server with its profile, or stop a running one. Asks before it acts.",
        where=_SERVERS,
        decide=start_stop,
        footer=15,
        group="servers",
        label=start_stop_title,
    ),
    ActionSpec(
        id="restart",
        key="R",
        title="restart",
        description="Stop and start again with the same profile. Asks before it acts.",
        where=_SERVERS,
        decide=with_server(Action.RESTART),
        group="servers",
    ),
    ActionSpec(
        id="adopt",
        key="A",
        title="adopt",
        description="Make a foreign server ours: from then on it can be stopped from here.",
        where=_SERVERS,
        decide=adopt,
        group="servers",
    ),
    ActionSpec(
        id="progress",
        key="g",
        title="progress",
        description="Steps of the action that runs, or ran last, on the selected server.",
        where=_SERVERS,
        decide=on_server,
        group="servers",
    ),
    *(_pinned(number) for number in range(1, 10)),
    ActionSpec(
        id="sort",
        key="o",
        title="order",
        description="Order of the servers: problems first, or as in the configuration.",
        where=frozenset({FLEET}),
        group="view",
    ),
    ActionSpec(
        id="span",
        key="t",
        title="time span",
        description="Span of the charts: 10 minutes, 1 hour, 6 hours.",
        where=_SERVERS,
        footer=24,
        group="view",
    ),
    ActionSpec(
        id="apply",
        key="enter",
        title="apply",
        description="Do what the plan says. Asks before it acts, and again for each danger.",
        where=frozenset({PICKER}),
        decide=with_server(Action.APPLY),
        footer=10,
        group="profiles",
    ),
    ActionSpec(
        id="bench-run",
        key="r",
        title="run",
        description="Run the selected job against the server.",
        where=frozenset({BENCH}),
        decide=bench_run,
        footer=10,
        group="benchmarks",
    ),
    ActionSpec(
        id="bench-stop",
        key="x",
        title="stop",
        description="Stop the benchmark that runs; finished cells are kept.",
        where=frozenset({BENCH}),
        decide=bench_stop,
        footer=11,
        group="benchmarks",
    ),
    ActionSpec(
        id="cancel",
        key="c",
        title="cancel",
        description="Cancel the action that is in progress. Says what would be left.",
        where=frozenset({PROGRESS}),
        decide=cancel,
        footer=11,
        group="servers",
    ),
    ActionSpec(
        id="trust",
        key="T",
        title="trust key",
        description="Show the fingerprint of an unknown host key and trust it.",
        where=frozenset({HOSTS}),
        decide=trust,
        footer=10,
        group="hosts",
    ),
    ActionSpec(
        id="check",
        key="d",
        title="doctor",
        description="Check the host: SSH, Python, SGLang and its flags, GPUs, disk, port.",
        where=frozenset({HOSTS}),
        decide=host_care,
        footer=11,
        group="hosts",
    ),
    ActionSpec(
        id="retry",
        key="r",
        title="retry now",
        description="Try to connect now.",
        where=frozenset({HOSTS}),
        decide=retry,
        footer=12,
        group="hosts",
    ),
    ActionSpec(
        id="forget",
        key="F",
        title="forget key",
        description="Forget the trusted key of a host that got another one on purpose. Asks before it acts.",
        where=frozenset({HOSTS}),
        decide=forget,
        footer=13,
        group="hosts",
    ),
    ActionSpec(
        id="follow",
        key="f",
        title="follow",
        description="Follow the end of the log, or stay where you are.",
        where=_LOGS,
        footer=20,
        group="log",
    ),
    ActionSpec(
        id="wrap",
        key="w",
        title="wrap",
        description="Wrap long lines, or scroll sideways.",
        where=_LOGS,
        footer=21,
        group="log",
    ),
    ActionSpec(
        id="copy",
        key="y",
        title="copy",
        description="Copy what is selected: the server's line, the command, the remedy, the log's lines.",
        where=_ALL - {HOSTS},
        footer=22,
        group="view",
    ),
    ActionSpec(
        id="save",
        key="S",
        title="save",
        description="Save the log, as filtered, to a file; says where.",
        where=_LOGS,
        footer=23,
        group="log",
    ),
    ActionSpec(
        id="filter",
        key="slash",
        title="filter",
        description="Show only what holds the words you type.",
        where=frozenset({FLEET, SERVER, LOG, PICKER}),
        footer=30,
        group="view",
    ),
    ActionSpec(
        id="hosts",
        key="h",
        title="hosts",
        description="Connections, host keys and the doctor.",
        where=frozenset({FLEET, SERVER}),
        footer=31,
        group="hosts",
    ),
    ActionSpec(
        id="command",
        key="colon",
        title="command",
        description="Type where to go: a server, fleet, hosts, bench, log NAME, help, quit.",
        where=_MAIN,
        footer=32,
    ),
    ActionSpec(
        id="next-panel",
        key="tab",
        title="next panel",
        description="Move to the next panel.",
        where=_ALL,
    ),
    ActionSpec(
        id="back",
        key="escape",
        title="back",
        description="Clear the filter, or go back.",
        where=_ALL,
        footer=33,
    ),
    ActionSpec(
        id="palette",
        key="ctrl+p",
        title="palette",
        description="Search everything that can be done here.",
        where=_ALL,
    ),
    ActionSpec(
        id="help",
        key="question_mark",
        title="help",
        description="The keys that work here.",
        where=_ALL,
        footer=40,
    ),
    ActionSpec(
        id="quit",
        key="q,ctrl+q",
        title="quit",
        description="Leave. Servers go on; asks only while an action is in progress.",
        where=_ALL,
        footer=41,
    ),
)
BY_ID: Final[Mapping[str, ActionSpec]] = {spec.id: spec for spec in ACTIONS}


def actions_in(screen: str) -> tuple[ActionSpec, ...]:
    """The actions of one screen in the order of the registry."""
    return tuple(spec for spec in ACTIONS if screen in spec.where)
