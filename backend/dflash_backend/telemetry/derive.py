"""The state of a server as a pure function of what was seen: one place, no I/O, no memory.

The order of the questions is the order of certainty: whether the host can be reached at all; what the run
folder and the process table say; what the server itself answers. An HTTP answer alone never makes a server
ours, and silence alone never makes it dead.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from dflash_backend.core.samples import LinkStatus, RunStatus, Stage
from dflash_backend.core.states import LinkState, ServerState, StageName

HOST_SILENT_S = 8.0
"""So long without a tick of the monitor, and the host counts as unreachable."""
BEING_LAUNCHED = "being launched"
"""The host's note on a run folder that has no process yet."""
HTTP_SILENT_S = 15.0
"""So long may a server that was ready stay silent before that is said: a long prefill blocks its answers."""

CONNECTING = "connecting"
READING = "connected, reading the host"
ASKING = "something listens on the port, asking it"
ASKING_OURS = "the process lives, asking its port"
NOT_YET = frozenset({CONNECTING, READING, ASKING, ASKING_OURS})
"""Messages of a state that is unknown only until the first answers have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What the server's port did when last asked. Times are the console's clock.

    ``answered`` is the newest time at which something answered as SGLang does, ``ready`` whether it then said
    that it serves. ``asked`` is the newest finished attempt.
    """

    asked: float | None = None
    answered: float | None = None
    ready: bool = False
    running: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a state is made of.

    ``host_at`` is the time of the newest tick, None when there never was one. ``listening`` is None when that
    is not known. ``was_ready`` says that this run has answered as ready before. ``why`` are the log lines
    that explain a failure. ``draining`` is set while an action waits for requests to finish.
    """

    now: float
    link: LinkStatus | None
    host_at: float | None
    host_problem: str = ""
    run: RunStatus | None = None
    listening: bool | None = None
    listener: int | None = None
    http: HttpAnswer = HttpAnswer()
    was_ready: bool = False
    stage: Stage | None = None
    why: tuple[str, ...] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """State, stage while starting, and the line that a user reads beside it."""

    state: ServerState
    message: str = ""
    stage: Stage | None = None


def age(seconds: float) -> str:
    """``42 s``, ``4 min``, ``3 h``, ``2 d``: short and never negative."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def exit_text(code: int | None) -> str:
    """``exit 1``, ``exit 137 (SIGKILL)``: shells report death by signal n as 128 + n."""
    if code is None:
        return "exit code unknown"
    number = code - 128 if 128 < code < 160 else -code if code < 0 else None
    try:
        return f"exit {code} ({signal.Signals(number).name})" if number else f"exit {code}"
    except ValueError:
        return f"exit {code}"


def derive(facts: Facts) -> Derived:
    """The state. See the module's text for the order of the questions."""
    unseen = _without_host(facts)
    if unseen is not None:
        return unseen
    run = facts.run
    if run is None:
        return _without_run(facts, "")
    if run.alive:
        return _alive(facts, run)
    return _over(facts, run)


def _seen(facts: Facts) -> str:
    return "never seen" if facts.host_at is None else f"last seen {age(facts.now - facts.host_at)} ago"


def _without_host(facts: Facts) -> Derived | None:
    """The state when nothing is known of the host now; None when its last tick is fresh."""
    link = facts.link
    if link is not None and link.state is LinkState.DISABLED:
        return Derived(state=ServerState.UNKNOWN, message="the host is disabled in the configuration")
    if link is not None and link.state.needs_human:
        text = link.message or f"SSH: {link.state}"
        return Derived(state=ServerState.UNREACHABLE, message=f"{text} ({_seen(facts)})")
    up = link is None or link.state is LinkState.UP
    if facts.host_at is not None and facts.now - facts.host_at <= HOST_SILENT_S and up:
        return None
    if facts.host_at is None and link is not None:
        if link.state is LinkState.CONNECTING and link.last_seen is None:
            return Derived(state=ServerState.UNKNOWN, message=CONNECTING)
        if up and not facts.host_problem and facts.now - link.since <= HOST_SILENT_S:
            return Derived(state=ServerState.UNKNOWN, message=READING)
    if up and facts.host_problem:
        # The host answers, but cannot be watched: whose server it is cannot be told.
        return Derived(state=ServerState.UNKNOWN, message=f"{facts.host_problem} ({_seen(facts)})")
    text = link.message if link is not None and not up and link.message else "no answer from the host"
    return Derived(state=ServerState.UNREACHABLE, message=f"{text} ({_seen(facts)})")


def _answers(facts: Facts) -> bool:
    """True when the port answered as SGLang and nothing since says that it stopped."""
    http = facts.http
    if http.answered is None or facts.listening is False:
        return False
    return facts.now - http.answered <= HTTP_SILENT_S


def _holder(facts: Facts) -> str:
    return f"pid {facts.listener}" if facts.listener is not None else "a process that cannot be seen"


def _without_run(facts: Facts, prefix: str) -> Derived:
    """No run of ours lives: somebody else's server, or nothing."""
    if _answers(facts):
        return Derived(
            state=ServerState.FOREIGN,
            message=f"{prefix}{_holder(facts)} answers on the port, not started from here",
        )
    if facts.listening and facts.http.asked is None:
        return Derived(state=ServerState.UNKNOWN, message=ASKING)
    if facts.listening:
        said = facts.http.message or "it does not answer as SGLang does"
        return Derived(
            state=ServerState.STOPPED, message=f"{prefix}the port is taken by {_holder(facts)}: {said}"
        )
    return Derived(state=ServerState.STOPPED, message=prefix.rstrip("; "))


def _alive(facts: Facts, run: RunStatus) -> Derived:
    http = facts.http
    left = f"{http.running} requests left" if http.running else ""
    if run.stop_requested_at is not None:
        if http.running and _answers(facts):
            return Derived(state=ServerState.DRAINING, message=f"stop was asked for, {left}")
        since = age(facts.now - run.stop_requested_at)
        return Derived(state=ServerState.STOPPING, message=f"stop was asked for {since} ago")
    if facts.draining:
        return Derived(state=ServerState.DRAINING, message=left or "no requests left")
    if _answers(facts) and http.ready:
        return Derived(state=ServerState.READY, message=run.note)
    if facts.was_ready:
        # It lives and says nothing: shown with its age, neither as ready nor as dead.
        silent = "" if http.answered is None else f" for {age(facts.now - http.answered)}"
        return Derived(
            state=ServerState.UNREACHABLE,
            message=f"the process lives, its port has not answered{silent}: {http.message or 'no answer'}",
        )
    if facts.listening and http.asked is None:
        # Seen for the first time, with an open port: it may have been ready for days.
        return Derived(state=ServerState.UNKNOWN, message=ASKING_OURS)
    stage = facts.stage or Stage(name=StageName.LAUNCH)
    if stage.name is StageName.READY:
        # The log line alone is not enough: an answer is.
        stage = Stage(name=StageName.WARM_UP)
    since = "" if run.started_at is None else f"starting for {age(facts.now - run.started_at)}"
    if facts.listening and http.message:
        since = f"{since}; its port: {http.message}" if since else f"its port: {http.message}"
    return Derived(state=ServerState.STARTING, stage=stage, message=run.note or since)


def _over(facts: Facts, run: RunStatus) -> Derived:
    if run.pid is None and run.exit_code is None and run.note == BEING_LAUNCHED:
        return Derived(state=ServerState.STARTING, stage=Stage(name=StageName.LAUNCH), message=run.note)
    asked_for = run.stop_requested_at is not None
    clean = asked_for or run.exit_code == 0
    said = exit_text(run.exit_code)
    when = f" {age(facts.now - run.exited_at)} ago" if run.exited_at is not None else ""
    if not clean:
        reason = "; ".join(facts.why) or run.note
        failed = f"{said}{when}" + (f": {reason}" if reason else "")
        if _answers(facts):
            return _without_run(facts, f"our run ended ({failed}); ")
        return Derived(state=ServerState.FAILED, message=failed)
    ended = "stopped" if asked_for else "ended by itself"
    note = f", {run.note}" if run.note else ""
    return _without_run(facts, f"{ended}{when} ({said}{note}); ")
