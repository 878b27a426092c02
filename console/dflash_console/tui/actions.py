"""The registry of actions: one list feeds bindings, key bar, help, palette, command line and the user's keymap."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dflash_backend.control.contract import Action, Decision
from dflash_backend.core.samples import LinkStatus, ServerSnapshot
from dflash_backend.core.states import LinkState, ServerState
from textual.binding import Binding

from dflash_console.tui.services import Services

ALLOWED: Final = Decision(allowed=True)


def refused(reason: str) -> Decision:
    """A decision with the reason that is shown."""
    return Decision(allowed=False, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an action would work on, as the screen in front sees it."""

    services: Services
    screen: str
    server: ServerSnapshot | None = None
    host: LinkStatus | None = None
    busy: str = ""
    """What is in progress on the server; empty when nothing is."""

    def ask(self, action: Action) -> Decision:
        """The backend's decision; what is in progress on this console is part of the answer."""
        if self.busy:
            return refused(f"{self.busy} is in progress on this server")
        return self.services.operator.decide(
            action,
            server=self.server.name if self.server else None,
            host=self.host.host if self.host else None,
        )


Decide = Callable[[Context], Decision]


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


def _on_server(context: Context) -> Decision:
    return ALLOWED if context.server else refused("no server is selected")


def _with_server(action: Action) -> Decide:
    def decide(context: Context) -> Decision:
        return context.ask(action) if context.server else refused("no server is selected")

    return decide


def runs_now(server: ServerSnapshot) -> bool:
    """True when ``s`` means stop: something of this server may be running."""
    return server.state in (
        ServerState.STARTING,
        ServerState.READY,
        ServerState.DRAINING,
        ServerState.STOPPING,
        ServerState.FOREIGN,
    )


def _start_stop(context: Context) -> Decision:
    if context.server is None:
        return refused("no server is selected")
    return context.ask(Action.STOP if runs_now(context.server) else Action.START)


def _start_stop_title(context: Context) -> str:
    if context.server is None:
        return "start/stop"
    return "stop" if runs_now(context.server) else "start"


def _adopt(context: Context) -> Decision:
    if context.server is None:
        return refused("no server is selected")
    if context.server.state is not ServerState.FOREIGN:
        return refused("only a foreign server, one that answers but was not started here, can be adopted")
    return context.ask(Action.ADOPT)


def _audit(context: Context) -> Decision:
    if context.services.audit is None:
        return refused("this console has no window audit to ask")
    return _on_server(context)


def _bench(context: Context) -> Decision:
    if context.services.bench is None:
        return refused("this console has no benchmark runner")
    return ALLOWED


def _bench_run(context: Context) -> Decision:
    if context.services.bench is None:
        return refused("this console has no benchmark runner")
    return _with_server(Action.BENCH)(context)


def _host_care(context: Context) -> Decision:
    if context.services.hosts is None:
        return refused("hosts cannot be changed from here")
    return ALLOWED if context.host else refused("no host is selected")


def _retry(context: Context) -> Decision:
    decision = _host_care(context)
    if not decision.allowed or context.host is None:
        return decision
    if context.host.state is LinkState.UP:
        return refused("the host is connected")
    if context.host.state is LinkState.DISABLED:
        return refused("the host is disabled in the configuration")
    return ALLOWED


def _trust(context: Context) -> Decision:
    decision = _host_care(context)
    if not decision.allowed or context.host is None:
        return decision
    if context.host.state is LinkState.KEY_CHANGED:
        return refused("a changed key is never trusted over the old one: forget the old key first")
    if context.host.state is not LinkState.KEY_UNKNOWN:
        return refused("the key of this host is not in question")
    return context.ask(Action.TRUST_KEY)


def _forget(context: Context) -> Decision:
    decision = _host_care(context)
    return context.ask(Action.FORGET_KEY) if decision.allowed else decision


FLEET, SERVER, PICKER, PROGRESS, BENCH, HOSTS, LOG = "fleet server picker progress bench hosts log".split()
SCREENS: Final = (FLEET, SERVER, PICKER, PROGRESS, BENCH, HOSTS, LOG)
_ALL = frozenset(SCREENS)
_MAIN = frozenset({FLEET, SERVER, BENCH, HOSTS, LOG, PROGRESS})
_SERVERS = frozenset({FLEET, SERVER})
_LOGS = frozenset({SERVER, LOG})


def _pinned(number: int) -> ActionSpec:
    def decide(context: Context) -> Decision:
        if number > len(context.services.pinned):
            return refused(f"no profile is pinned to {number}: see `pinned` in the configuration")
        return _on_server(context)

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
        decide=_on_server,
        footer=10,
        group="servers",
    ),
    ActionSpec(
        id="profile",
        key="p",
        title="profile",
        description="Choose another profile: shows the exact command and every change before anything happens.",
        where=_SERVERS,
        decide=_on_server,
        footer=11,
        group="profiles",
    ),
    ActionSpec(
        id="audit",
        key="a",
        title="audit",
        description="Compare the drafter's declared window with what is attended and cached.",
        where=_SERVERS,
        decide=_audit,
        footer=12,
        group="servers",
    ),
    ActionSpec(
        id="bench",
        key="b",
        title="bench",
        description="Benchmarks: run a job against the selected server, see earlier runs.",
        where=_SERVERS,
        decide=_bench,
        footer=13,
        group="benchmarks",
    ),
    ActionSpec(
        id="logs",
        key="l",
        title="logs",
        description="The server's log on the whole screen.",
        where=_SERVERS,
        decide=_on_server,
        footer=14,
        group="servers",
    ),
    ActionSpec(
        id="start-stop",
        key="s",
        title="start/stop",
        description="Start a stopped server with its profile, or stop a running one. Asks before it acts.",
        where=_SERVERS,
        decide=_start_stop,
        footer=15,
        group="servers",
        label=_start_stop_title,
    ),
    ActionSpec(
        id="restart",
        key="R",
        title="restart",
        description="Stop and start again with the same profile. Asks before it acts.",
        where=_SERVERS,
        decide=_with_server(Action.RESTART),
        group="servers",
    ),
    ActionSpec(
        id="adopt",
        key="A",
        title="adopt",
        description="Make a foreign server ours: from then on it can be stopped from here.",
        where=_SERVERS,
        decide=_adopt,
        group="servers",
    ),
    ActionSpec(
        id="progress",
        key="g",
        title="progress",
        description="Steps of the action that runs, or ran last, on the selected server.",
        where=_SERVERS,
        decide=_on_server,
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
        decide=_with_server(Action.APPLY),
        footer=10,
        group="profiles",
    ),
    ActionSpec(
        id="bench-run",
        key="r",
        title="run",
        description="Run the selected job against the server.",
        where=frozenset({BENCH}),
        decide=_bench_run,
        footer=10,
        group="benchmarks",
    ),
    ActionSpec(
        id="bench-stop",
        key="x",
        title="stop",
        description="Stop the benchmark that runs; finished cells are kept.",
        where=frozenset({BENCH}),
        footer=11,
        group="benchmarks",
    ),
    ActionSpec(
        id="cancel",
        key="c",
        title="cancel",
        description="Cancel the action that is in progress. Says what would be left.",
        where=frozenset({PROGRESS}),
        footer=11,
        group="servers",
    ),
    ActionSpec(
        id="trust",
        key="T",
        title="trust key",
        description="Show the fingerprint of an unknown host key and trust it.",
        where=frozenset({HOSTS}),
        decide=_trust,
        footer=10,
        group="hosts",
    ),
    ActionSpec(
        id="check",
        key="d",
        title="doctor",
        description="Check the host: SSH, Python, SGLang and its flags, GPUs, disk, port.",
        where=frozenset({HOSTS}),
        decide=_host_care,
        footer=11,
        group="hosts",
    ),
    ActionSpec(
        id="retry",
        key="r",
        title="retry now",
        description="Try to connect now.",
        where=frozenset({HOSTS}),
        decide=_retry,
        footer=12,
        group="hosts",
    ),
    ActionSpec(
        id="forget",
        key="F",
        title="forget key",
        description="Forget the trusted key of this host, after it was changed on purpose. Asks before it acts.",
        where=frozenset({HOSTS}),
        decide=_forget,
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
        description="Copy what is selected: the server's line, the command, the visible lines of the log.",
        where=frozenset({FLEET, SERVER, PICKER, LOG, PROGRESS, HOSTS, BENCH}),
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


def bindings_in(screen: str) -> list[Binding]:
    """Bindings of one screen; their ids are what the user's keymap names."""
    return [
        Binding(
            spec.key,
            f"act('{spec.id}')",
            spec.title,
            show=False,
            id=spec.id,
        )
        for spec in actions_in(screen)
    ]


_KEY_NAMES = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "escape": "esc",
    "enter": "enter",
    "tab": "tab",
    "comma": ",",
    "full_stop": ".",
    "space": "space",
}


def key_text(keys: str) -> str:
    """The first of some keys as people write it: ``?``, ``esc``, ``^q``."""
    key = keys.split(",")[0].strip()
    if key.startswith("ctrl+"):
        return f"^{_KEY_NAMES.get(key[5:], key[5:])}"
    return _KEY_NAMES.get(key, key)


def keys_of(spec: ActionSpec, keymap: Mapping[str, str]) -> str:
    """The keys of an action after the user's keymap."""
    return keymap.get(spec.id) or spec.key


def check_keymap(keymap: Mapping[str, str]) -> Iterable[str]:
    """What is wrong with a keymap, in words: unknown actions with the nearest name, keys used twice."""
    for name in keymap:
        if name not in BY_ID:
            near = difflib.get_close_matches(name, BY_ID, 1)
            yield f"keymap: no action is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    for screen in SCREENS:
        taken: dict[str, str] = {}
        for spec in actions_in(screen):
            for key in keys_of(spec, keymap).split(","):
                if key.strip() in taken and (spec.id in keymap or taken[key.strip()] in keymap):
                    yield f"keymap: {key_text(key)!r} means {taken[key.strip()]!r} and {spec.id!r} on {screen}"
                taken.setdefault(key.strip(), spec.id)
