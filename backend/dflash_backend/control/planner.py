"""Makes plans: what an action would do, exactly, without doing any of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from dflash_backend.audit.live import Launch, gap_warning
from dflash_backend.audit.report import AuditReport, Verdict
from dflash_backend.control.argv_diff import changes_between
from dflash_backend.control.contract import Action, Plan, PlanWarning
from dflash_backend.control.facts import FactsCache, HostFacts
from dflash_backend.control.memory import forecast
from dflash_backend.control.start_times import StartTimes
from dflash_backend.core.errors import ConfigError, ConsoleError, UsageError
from dflash_backend.core.inventory import Inventory, ServerConfig
from dflash_backend.core.profile import Algorithm, Profile, Program
from dflash_backend.core.samples import RunStatus, ServerSnapshot
from dflash_backend.sglang.argv import REFERENCE_VERSION, compose
from dflash_backend.sglang.command import BuiltCommand, CommandWarning, HostAbilities, Refusal
from dflash_backend.sglang.versions import parse_version
from dflash_backend.telemetry.contract import FleetView

MAX_TCP_PORT = 65535
GRPC_PORT_OFFSET = 10000
GRPC_PORT_UNTIL = "0.5.16"
"""The first release that derives a gRPC port only when gRPC is asked for."""


WindowAudit = Callable[[ServerConfig, Launch], Awaitable[AuditReport]]


class ProfileSource(Protocol):
    """Gives resolved profiles by name."""

    def load(self, name: str) -> Profile:
        """Raises ConfigError for a damaged profile, UsageError for an unknown one (with the nearest)."""
        ...


class Planner:
    """Plans over the inventory, the profiles, the host's facts and the newest snapshot."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        profiles: ProfileSource,
        facts: FactsCache,
        fleet: FleetView,
        start_times: StartTimes,
    ) -> None:
        self._inventory = inventory
        self._profiles = profiles
        self._facts = facts
        self._fleet = fleet
        self._start_times = start_times
        self.window_audit: WindowAudit | None = None
        """Says what the drafter's windows will be where a command is launched; None: releases alone tell."""

    def server(self, name: str) -> ServerConfig:
        """A configured server. Raises UsageError with the nearest name."""
        import difflib

        config = self._inventory.servers.get(name)
        if config is None:
            near = difflib.get_close_matches(name, list(self._inventory.servers), 1)
            names = ", ".join(self._inventory.servers) or "none is configured"
            raise UsageError(
                f"no server named '{name}'",
                next_step=f"did you mean {near[0]}?" if near else f"servers: {names}",
            )
        return config

    async def plan(self, action: Action, server: str, profile: str | None = None) -> Plan:
        """The plan. Stopping and adopting plan against what runs, the others against a profile.

        Raises UsageError, ConfigError, UnreachableError, RefusedError (host key).
        """
        config = self.server(server)
        now = self._fleet.snapshot().server(server)
        running = now.run if now is not None and now.run is not None and now.run.alive else None
        if action in (Action.STOP, Action.ADOPT):
            return self._plan_end(action, config, running)
        chosen = (
            profile or (running.profile if action is Action.RESTART and running else None) or config.profile
        )
        if chosen is None:
            raise UsageError(
                f"{server} has no profile in the configuration",
                next_step="name one: --profile P; dflash-console profiles list shows them",
            )
        wanted = self._profiles.load(chosen)
        facts = await self._facts.get(config.host)
        command = self._compose(wanted, config, facts)
        windows = await self._window_warnings(wanted, config, command)
        refusals = [_refusal(refusal) for refusal in command.refusals]
        if not facts.python_ok:
            refusals.insert(0, facts.python_note or f"{facts.python} does not run on {config.host}")
        span = self._start_times.range(config.host, wanted.digest)
        return Plan(
            server=server,
            host=config.host,
            action=action,
            profile=wanted,
            from_profile=running.profile if running else None,
            from_run=running.run_id if running else None,
            changes=changes_between(running.argv if running else None, command.argv),
            argv=command.argv,
            env=command.env,
            command=command.shell(),
            live=False,
            warnings=(
                *windows,
                *self._port_warnings(wanted, config, facts, command),
                *(PlanWarning(text=text) for text in self._warnings(action, now, running, wanted)),
            ),
            notes=command.notes,
            refusals=tuple(refusals),
            memory_forecast=forecast(wanted, now, running),
            expected_s=span[1] if span else None,
        )

    def _compose(self, profile: Profile, config: ServerConfig, facts: HostFacts) -> BuiltCommand:
        abilities = HostAbilities(
            options=facts.options,
            plugin_features=facts.plugin_features,
            compute_capability=facts.compute_capability,
        )
        version = facts.sglang_version
        if profile.program is Program.SGLANG and version is None:
            missing = Refusal(
                text=facts.sglang_note or f"no SGLang in {facts.python} on {config.host}",
                next_step=f"set python of host {config.host} to the venv that has it; see hosts check",
            )
            # The command is still shown, in the newest spelling, so that the plan can be read.
            built = compose(profile, "0.5.23", python=facts.python, port=config.port, abilities=abilities)
            return BuiltCommand(
                argv=built.argv,
                env=built.env,
                secret_env=built.secret_env,
                notes=built.notes,
                warnings=built.warnings,
                refusals=(missing, *built.refusals),
            )
        return compose(
            profile,
            version or REFERENCE_VERSION,
            python=facts.python,
            port=config.port,
            abilities=abilities,
        )

    def _port_warnings(
        self, profile: Profile, config: ServerConfig, facts: HostFacts, command: BuiltCommand
    ) -> tuple[PlanWarning, ...]:
        """SGLang 0.5.11 to 0.5.15 derives a port from the server's and refuses to start when there is none.

        Source: ``server_args.py`` of those releases, ``SGLANG_GRPC_PORT``; later ones only with gRPC on.
        """
        environment = {**self._inventory.hosts[config.host].env, **profile.env, **command.env}
        if (
            profile.program is not Program.SGLANG
            or config.port <= MAX_TCP_PORT - GRPC_PORT_OFFSET
            or "SGLANG_GRPC_PORT" in environment
            or facts.sglang_version is None
            or parse_version(facts.sglang_version).order >= parse_version(GRPC_PORT_UNTIL).order
        ):
            return ()
        return (
            PlanWarning(
                text=f"port {config.port}: SGLang {facts.sglang_version} adds {GRPC_PORT_OFFSET} to it for "
                f"gRPC and does not start above {MAX_TCP_PORT}; use a port up to "
                f"{MAX_TCP_PORT - GRPC_PORT_OFFSET} or set SGLANG_GRPC_PORT in the profile",
                dangerous=True,
            ),
        )

    async def launch(self, server: str) -> Launch | None:
        """What the server's own profile would launch; None when the configuration names no profile.

        Raises what ``plan`` raises.
        """
        config = self.server(server)
        if config.profile is None:
            return None
        command = self._compose(
            self._profiles.load(config.profile), config, await self._facts.get(config.host)
        )
        return Launch(profile=config.profile, argv=command.argv, env=command.env)

    async def _window_warnings(
        self, wanted: Profile, config: ServerConfig, command: BuiltCommand
    ) -> list[PlanWarning]:
        """The command's warnings; those about the drafter's window come from an audit of the host itself."""
        others = [w for w in command.warnings if w.topic != "window"]
        known = [w for w in command.warnings if w.topic == "window"]
        asks = (
            wanted.program is Program.SGLANG
            and wanted.algorithm is not Algorithm.NONE
            and wanted.drafter is not None
            and wanted.window != "off"
        )
        if asks and self.window_audit is not None:
            launch = Launch(profile=wanted.name, argv=command.argv, env=command.env)
            try:
                report = await self.window_audit(config, launch)
            except ConsoleError:
                report = None  # the host was asked for its facts a moment ago: what the release tells is left
            if report is not None and report.verdict is not Verdict.UNKNOWN:
                known = [CommandWarning(text=text) for text in gap_warning(report)]
        return [PlanWarning(text=w.text, dangerous=w.dangerous) for w in (*known, *others)]

    def _plan_end(self, action: Action, config: ServerConfig, running: RunStatus | None) -> Plan:
        name = running.profile if running else config.profile
        try:
            profile = self._profiles.load(name) if name else Profile(name="", target="")
        except (ConfigError, UsageError):
            # A run outlives the file of its profile: stopping must still work.
            profile = Profile(name=name or "", target="")
        argv = running.argv if running else ()
        return Plan(
            server=config.name,
            host=config.host,
            action=action,
            profile=profile,
            from_profile=running.profile if running else None,
            from_run=running.run_id if running else None,
            changes=(),
            argv=argv,
            command=" ".join(argv),
            live=False,
        )

    def _warnings(
        self, action: Action, now: ServerSnapshot | None, running: RunStatus | None, wanted: Profile
    ) -> list[str]:
        texts = []
        if running is not None and now is not None and now.figures is not None and now.figures.running:
            count = now.figures.running
            words = "1 request" if count == 1 else f"{count} requests"
            texts.append(f"{words} in flight will be cut off by the restart")
        if action is Action.APPLY and running is not None and running.profile_digest == wanted.digest:
            texts.append(f"{running.profile} is what runs already: this only restarts it")
        if now is not None:
            mine = {running.pgid, running.pid} if running else set()
            for gpu in now.gpus:
                for process in gpu.processes:
                    if process.pid not in mine and running is None:
                        used = f"{process.memory_mib:.0f} MiB" if process.memory_mib else "memory"
                        texts.append(f"GPU {gpu.index}: process {process.pid} {process.name} holds {used}")
        return texts


def _refusal(refusal: Refusal) -> str:
    return f"{refusal.text}; {refusal.next_step}" if refusal.next_step else refusal.text
