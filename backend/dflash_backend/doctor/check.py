"""Checks one host: the connection first, then everything that the host's own program can see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, RefusedError
from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.profile import Program
from dflash_backend.core.states import LinkState
from dflash_backend.doctor.findings import HOST, examine
from dflash_backend.doctor.report import Finding, HostReport
from dflash_backend.profiles.store import ProfileStore
from dflash_backend.ssh.link import HostLink

NAMES = ("python", "sglang", "flags", "plugin", "gpus", "disk", "services")
"""What is looked at over a connection, in the order of the report; then one ``port N`` each."""


def needs_sglang(servers: Iterable[ServerConfig], profiles: ProfileStore) -> bool:
    """False when every one of ``servers`` is configured with a profile that launches something else."""

    def other(server: ServerConfig) -> bool:
        try:
            return server.profile is not None and profiles.load(server.profile).program is not Program.SGLANG
        except ConsoleError:
            return False

    found = [other(server) for server in servers]
    return not found or not all(found)


async def check_host(
    link: HostLink,
    *,
    ports: Sequence[int] = (),
    sglang: bool = True,
    timeout: float = 60.0,
    clock: Clock = wall,
) -> HostReport:
    """Looks at a host and changes nothing there. ``ports``: those of its configured servers.

    ``sglang``: whether one of them needs it; else it is no fault that the host has none.

    Never raises for the state of the host: what cannot be reached or seen is a finding. ``timeout`` bounds
    the connecting and the look, in seconds each.
    """
    host = link.config.name
    ports = sorted(set(ports))
    try:
        await link.run(["true"], timeout=timeout)
    except ConsoleError as problem:
        return HostReport(
            host=host,
            at=clock(),
            findings=(*_no_connection(link, problem), *_unseen(ports, "no connection")),
            exit_code=problem.exit_code,
        )
    found = [
        Finding(name="ssh", status="ok", text=f"connected to {link.config.address}"),
        Finding(name="host key", status="ok", text="verified at every hop"),
    ]
    try:
        answer = await link.run_program("doctor", {"ports": list(ports)}, timeout=timeout)
        refusals = {port: await link.port_refusal(port) for port in ports[:1] or (1,)}
    except ConsoleError as problem:
        found.append(Finding(name="python", status="fail", text=problem.what, next_step=problem.next_step))
        found.extend(_unseen(ports, "the host's Python did not answer")[1:])
        return HostReport(host=host, at=clock(), findings=tuple(found), exit_code=1)
    found.append(_forwarding(refusals.values()))
    found.extend(_for_host(finding, host, sglang) for finding in examine(answer, ports))
    failed = any(finding.status == "fail" for finding in found)
    return HostReport(host=host, at=clock(), findings=tuple(found), exit_code=1 if failed else 0)


def _for_host(finding: Finding, host: str, sglang: bool) -> Finding:
    if not sglang and finding.name in ("sglang", "plugin") and finding.text.startswith("not installed"):
        return Finding(name=finding.name, status="ok", text="not installed; no server of this host needs it")
    return replace(finding, next_step=finding.next_step.replace(HOST, host))


def _no_connection(link: HostLink, problem: ConsoleError) -> tuple[Finding, ...]:
    state = link.status.state
    told = Finding(name="ssh", status="fail", text=problem.what, next_step=problem.next_step)
    if state in (LinkState.KEY_UNKNOWN, LinkState.KEY_CHANGED):
        return (
            Finding(name="ssh", status="unknown", text="not tried: the host key comes first"),
            Finding(name="host key", status="fail", text=problem.what, next_step=problem.next_step),
        )
    if isinstance(problem, RefusedError) and state is LinkState.AUTH_FAILED:
        return (told, Finding(name="host key", status="ok", text="verified at every hop"))
    return (told, Finding(name="host key", status="unknown", text="the host showed none"))


def _unseen(ports: Iterable[int], why: str) -> list[Finding]:
    names = (*NAMES, *(f"port {port}" for port in ports))
    return [Finding(name=name, status="unknown", text=why) for name in names]


def _forwarding(refusals: Iterable[str]) -> Finding:
    for refusal in refusals:
        if "forbids" in refusal:
            return Finding(
                name="forwarding",
                status="fail",
                text=refusal,
                next_step="allow local forwarding to 127.0.0.1 in the host's sshd_config: "
                "without it no figures of a server can be read",
            )
    return Finding(name="forwarding", status="ok", text="ports of the host can be reached")
