"""Runs on one host, through its link. The host is the memory: only secrets to redact are kept here."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets as random_source
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from dflash_backend.core.errors import FailedError, RefusedError, UnreachableError, UsageError
from dflash_backend.core.samples import RunStatus
from dflash_backend.core.text import sanitise
from dflash_backend.runs.contract import LaunchSpec, StopReport
from dflash_backend.runs.log import clean_batches
from dflash_backend.runs.rows import rows_of, run_status
from dflash_backend.ssh.link import HostLink

LAUNCH_TIMEOUT_S = 90.0
"""The host gives up a launch that does not come to life well before this, and cleans up."""
FIND_AGAIN_S = 30.0
STOP_STEP_S = 5.0
AFTER_GRACE_S = 120.0
"""After the grace: the kill, the GPU driver's own time, the checks, and a connection that comes back."""
MAX_GRACE_S = 86400.0
MAX_NAME = 200
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class HostRuns:
    """``RunService`` of one host (see ``runs.contract``)."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._secrets: set[str] = set()

    @property
    def _where(self) -> str:
        return f"host {self._link.config.name}"

    async def launch(self, spec: LaunchSpec) -> RunStatus:
        """Starts a run and returns once its identity is on the host's disk.

        Raises UsageError for what cannot be launched anywhere, RefusedError for a secret on the command line,
        FailedError with nothing left on the host (no interpreter, port taken, disk full, runs already),
        UnreachableError when the connection went and the host could not be asked how the launch ended.
        """
        check_spec(spec)
        values = tuple(value for value in spec.secret_env.values() if value)
        self._secrets.update(values)
        token = random_source.token_hex(4)
        request = {
            "op": "launch",
            "token": token,
            "server": spec.server,
            "profile": spec.profile,
            "profile_digest": spec.profile_digest,
            "profile_toml": spec.profile_toml,
            "argv": list(spec.argv),
            "port": spec.port,
            "cwd": spec.cwd,
            "env": {**self._link.config.env, **spec.env},
            "secret_env": dict(spec.secret_env),
            "started_by": spec.started_by,
            "console_version": console_version(),
            "log_cap_mib": spec.log_cap_mib,
            "systemd": spec.systemd,
            "files": host_files(),
        }
        try:
            row = await self._link.run_program("runs", request, timeout=LAUNCH_TIMEOUT_S, secrets=values)
        except UnreachableError as lost:
            return await self._launched_after_all(token, lost)
        return self._status(row)

    async def _launched_after_all(self, token: str, lost: UnreachableError) -> RunStatus:
        """The run of a launch whose answer did not arrive: the host finishes or undoes a launch by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIND_AGAIN_S):
                while True:
                    try:
                        runs = await self.list_runs()
                    except UnreachableError:
                        await asyncio.sleep(1.0)
                        continue
                    for run in runs:
                        if run.run_id.endswith(token) and run.pid is not None:
                            return run
                    if not any(run.run_id.endswith(token) for run in runs):
                        break
                    await asyncio.sleep(0.5)
        raise UnreachableError(
            f"the connection was lost while the run was being launched: {lost.what}",
            where=self._where,
            unchanged="the host either finished the launch or undid it; it leaves no half of one",
            next_step="look at the server's state once the host is back, before launching again",
        ) from lost

    async def list_runs(self) -> tuple[RunStatus, ...]:
        """All run folders of the host, newest first; what is wrong with one is in its ``note``."""
        rows, profiles = rows_of(await self._link.run_program("runs", {"op": "list"}))
        return tuple(run_status(row, profiles, secrets=tuple(self._secrets)) for row in rows)

    async def stop(self, run_id: str, *, grace_s: float = 60.0) -> StopReport:
        """TERM to the run's processes, KILL after ``grace_s``, then proof of what is gone.

        The host carries the stop out by itself: cancelling this, killing the console or losing the connection
        does not leave it half done. Calling it again joins the stop that is under way, and can shorten its
        grace. Raises RefusedError when it cannot be told which processes are the run's, UnreachableError when
        the host stays away until well after the grace.
        """
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise UsageError(
                f"a grace of {grace_s:g} s is not possible", next_step=f"use 0 to {MAX_GRACE_S:g} s"
            )
        request = {
            "op": "stop",
            "run_id": run_id,
            "grace_s": grace_s,
            "by": console_version(),
            "wait_s": STOP_STEP_S,
        }
        clock = asyncio.get_running_loop().time
        deadline = clock() + grace_s + AFTER_GRACE_S
        asked = False
        while True:
            try:
                answer = await self._link.run_program("runs", request, timeout=STOP_STEP_S + 30.0)
            except UnreachableError as lost:
                if not asked and self._link.status.last_seen is None:
                    raise
                if clock() > deadline:
                    raise UnreachableError(
                        f"the host has been away since the stop of run {run_id} was asked for: {lost.what}",
                        where=self._where,
                        unchanged="the host goes on with the stop by itself",
                        next_step="look at the server's state once the host is back; stopping again is safe",
                    ) from lost
                await asyncio.sleep(1.0)
                continue
            # From now on only to wait: the grace of the first request goes on counting.
            asked = True
            request["op"] = "stop-wait"
            report = answer.get("report") if isinstance(answer, Mapping) else None
            if isinstance(report, Mapping):
                return stop_report(run_id, report)
            if clock() > deadline:
                raise FailedError(
                    f"the stop of run {run_id} has not come to an end",
                    where=self._where,
                    unchanged="the host goes on trying",
                    next_step="look for processes in state D on the host; stop again later",
                )

    async def adopt(self, *, server: str, port: int, profile: str = "", started_by: str = "") -> RunStatus:
        """Makes the process that listens on ``port`` a run; from then on it is ours to stop.

        Raises FailedError when nothing listens, RefusedError when the process cannot be seen, is another
        user's or another server's, or carries the host's own services.
        """
        check_name("server", server)
        check_port(port)
        row = await self._link.run_program(
            "runs",
            {
                "op": "adopt",
                "token": random_source.token_hex(4),
                "server": server,
                "port": port,
                "profile": profile,
                "started_by": started_by,
                "console_version": console_version(),
            },
            timeout=60.0,
        )
        return self._status(row)

    async def follow_log(
        self, run_id: str, *, last_bytes: int = 65536, follow: bool = True, since_s: float | None = None
    ) -> AsyncGenerator[list[str], None]:
        """Clean lines in batches: the last ``last_bytes`` from a line's begin, then what is added.

        ``since_s``: instead, from the first line stamped within the last so many seconds (host's clock).
        Ends after the tail without ``follow``, else when the run is over and its log has been read.
        """
        request = {
            "op": "follow",
            "run_id": run_id,
            "last_bytes": max(0, last_bytes),
            "since_s": since_s,
            "follow": follow,
        }
        secrets = tuple(self._secrets)
        async with (
            self._link.stream_program("runs", request) as process,
            contextlib.aclosing(clean_batches(process, host=self._where, secrets=secrets)) as batches,
        ):
            async for batch in batches:
                yield batch

    async def forget(self, run_id: str) -> None:
        """Deletes the folder of a run that is over. Raises RefusedError while anything of it lives."""
        await self._link.run_program("runs", {"op": "forget", "run_id": run_id})

    def _status(self, row: object) -> RunStatus:
        if not isinstance(row, Mapping):
            raise FailedError("the host's answer is not a run", where=self._where)
        return run_status(row, secrets=tuple(self._secrets))


def stop_report(run_id: str, report: Mapping[str, object]) -> StopReport:
    """The host's report as typed and clean values; what is missing counts as not proven."""
    code, gpu, seconds, notes = (report.get(key) for key in ("exit_code", "gpu_free", "seconds", "notes"))
    return StopReport(
        run_id=run_id,
        exit_code=code if isinstance(code, int) else None,
        group_gone=report.get("group_gone") is True,
        gpu_free=gpu if isinstance(gpu, bool) else None,
        port_free=report.get("port_free") is True,
        killed=report.get("killed") is True,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        notes=tuple(sanitise(str(note), multiline=False) for note in notes)
        if isinstance(notes, list)
        else (),
    )


def check_spec(spec: LaunchSpec) -> None:
    """Refuses what must not reach a host. Raises UsageError, and RefusedError for a secret in plain sight."""
    check_name("server", spec.server)
    check_name("profile", spec.profile, empty=True)
    check_port(spec.port)
    if not spec.argv or not spec.argv[0]:
        raise UsageError("the command to launch is empty", where=spec.server)
    for name in (*spec.env, *spec.secret_env):
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of an environment variable",
                where=spec.server,
                next_step="use letters, digits and underscores",
            )
    for part in (*spec.argv, *spec.env.values(), *spec.secret_env.values()):
        if "\0" in part:
            raise UsageError("an argument or a variable holds a NUL byte", where=spec.server)
    seen = "\n".join((*spec.argv, *spec.env.values(), spec.profile_toml, spec.started_by))
    for name, value in spec.secret_env.items():
        if len(value) >= 4 and value in seen:
            raise RefusedError(
                f"the value of the secret {name} stands in the command, its environment or the profile",
                where=spec.server,
                unchanged="nothing was launched",
                next_step="use a reference instead (env:NAME, file:PATH, command:...)",
            )


def check_name(kind: str, name: str, *, empty: bool = False) -> None:
    """Refuses names that could not be shown or found again: empty, too long, control characters."""
    if not name and not empty:
        raise UsageError(f"a {kind} needs a name")
    if len(name) > MAX_NAME or sanitise(name, multiline=False) != name:
        raise UsageError(
            f"{sanitise(name, multiline=False, limit=60)!r} cannot be the name of a {kind}",
            next_step=f"use at most {MAX_NAME} printable characters, no line breaks",
        )


def check_port(port: int) -> None:
    """Raises UsageError for what is no TCP port."""
    if not 0 < port < 65536:
        raise UsageError(f"{port} is not a TCP port")


@cache
def host_files() -> dict[str, str]:
    """The two files that a run folder gets: they stay there, for the supervisor of that run alone."""
    folder = files("dflash_backend.hostside")
    return {
        "supervisor.sh": folder.joinpath("supervisor.sh").read_text(encoding="utf-8"),
        "child.py": folder.joinpath("_child.py").read_text(encoding="utf-8"),
    }


@cache
def console_version() -> str:
    """Version of this console, as it is installed."""
    try:
        return version("dflash-sglang-console")
    except PackageNotFoundError:
        return "unknown"
