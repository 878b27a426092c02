"""The hosts: connections, keys that are not known, and the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.containers import Vertical
from textual.widget import Widget

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, Snapshot
from dflash_backend.core.states import LinkState
from dflash_console.tui import figures as fig
from dflash_console.tui.actions import HOSTS
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.look import LINK_GLYPHS
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.services import Finding, KeyOffer
from dflash_console.tui.widgets.grid import Column, Grid, Row

_LEVELS = {
    "ok": ("✓", "good"),
    "info": ("·", "dim"),
    "warning": ("⚑", "warn"),
    "failed": ("✖", "bad"),
}


class HostsScreen(ConsoleScreen):
    """Hosts above, the doctor's findings about the selected one below."""

    WHERE = HOSTS
    CSS_PATH = "hosts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(HOSTS)]
    AUTO_FOCUS = "#hosts"

    def __init__(self, host: str | None = None) -> None:
        super().__init__()
        self._wanted = host
        self._findings: dict[str, list[Finding]] = {}
        self._checking: set[str] = set()

    def compose_body(self) -> Iterable[Widget]:
        """Hosts, findings."""
        with Vertical(id="hosts-panel", classes="panel"):
            yield Grid(
                (
                    Column(key="glyph", title="", width=1),
                    Column(key="host", title="host", width=12, want=16),
                    Column(key="state", title="connection", width=12),
                    Column(key="since", title="since", width=6, align="right", rank=60),
                    Column(key="seen", title="seen", width=6, align="right", rank=50),
                    Column(key="retry", title="retry in", width=8, align="right", rank=55),
                    Column(key="message", title="", width=10, most=400),
                ),
                id="hosts",
                empty="no hosts: add one to the configuration file",
            )
        with Vertical(id="doctor-panel", classes="panel"):
            yield Grid(
                (
                    Column(key="sign", title="", width=1),
                    Column(key="name", title="", width=10, want=14),
                    Column(key="text", title="", width=10, most=400),
                ),
                id="findings",
                header=False,
                empty="d runs the doctor on the selected host",
            )

    def on_ready(self) -> None:
        """Selects the wanted host."""
        self.query_one("#hosts-panel").border_title = "hosts"
        self.repaint()
        if self._wanted and not self.query_one("#hosts", Grid).select(self._wanted):
            self.console_app.tell(f"no host is called {self._wanted}", "warning")

    def summary_text(self, snapshot: Snapshot) -> str:
        """Counts."""
        up = sum(host.state is LinkState.UP for host in snapshot.hosts)
        asks = sum(host.state.needs_human for host in snapshot.hosts)
        count = len(snapshot.hosts)
        words = f"{count} host{'' if count == 1 else 's'} · {up} connected"
        return words + (f" · {asks} need you" if asks else "")

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Hosts and findings."""
        self.query_one("#hosts", Grid).set_rows([_row(host, now) for host in snapshot.hosts])
        self._paint_findings()

    def _paint_findings(self) -> None:
        host = self.query_one("#hosts", Grid).key
        findings = self._findings.get(host or "", [])
        grid = self.query_one("#findings", Grid)
        rows = []
        for index, finding in enumerate(findings):
            sign, role = _LEVELS[finding.level]
            rows.append(
                Row(
                    f"{index}",
                    {
                        "sign": ((sign, role),),
                        "name": ((finding.name, "text"),),
                        "text": ((finding.text, "text" if finding.level != "info" else "dim"),),
                    },
                )
            )
            if finding.next_step:
                rows.append(Row(f"{index}:next", {"text": ((f"next: {finding.next_step}", "dim"),)}))
        grid.set_rows(rows)
        title = f"doctor   {host}" if host else "doctor"
        if host in self._checking:
            title += "   checking …"
        elif findings:
            bad = sum(f.level == "failed" for f in findings)
            title += f"   {len(findings)} checks, {bad} failed" if bad else f"   {len(findings)} checks"
        self.console_app.set_title(self.query_one("#doctor-panel"), title)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Other host, other keys and findings."""
        if event.grid.id == "hosts":
            self._paint_findings()
            self.paint_keys()

    async def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """A click on a host runs the doctor."""
        if event.grid.id == "hosts":
            await self.action_act("check")

    def target_host(self) -> LinkStatus | None:
        """The host under the cursor."""
        key = self.query_one("#hosts", Grid).key
        return self.console_app.host(key) if key else None

    def do_check(self, context: Context) -> None:
        """Runs the doctor."""
        if context.host is not None and context.host.host not in self._checking:
            name = context.host.host
            self.console_app.background(self, lambda: self._check(name), f"doctor of {name}", group="doctor")

    async def _check(self, host: str) -> None:
        care = self.services.hosts
        assert care is not None
        self._checking.add(host)
        self._findings[host] = []
        self._paint_findings()
        try:
            async for finding in care.check(host):
                self._findings[host].append(finding)
                self._paint_findings()
                await asyncio.sleep(0)
        except ConsoleError as error:
            head, *rest = error.lines()
            self._findings[host].append(
                Finding(
                    name="doctor",
                    level="failed",
                    text=head,
                    next_step=" · ".join(rest).removeprefix("next: "),
                )
            )
        finally:
            self._checking.discard(host)
            if self.is_mounted:
                self._paint_findings()

    def do_retry(self, context: Context) -> None:
        """Connects now."""
        if context.host is not None:
            host = context.host.host
            self._care(lambda: self._retry(host))

    async def _retry(self, host: str) -> None:
        assert self.services.hosts is not None
        await self.services.hosts.retry(host)
        self.console_app.tell(f"connecting to {host} now")

    def do_trust(self, context: Context) -> None:
        """Shows the fingerprint and asks."""
        if context.host is not None:
            host = context.host.host
            self._care(lambda: self._trust(host))

    async def _trust(self, host: str) -> None:
        care = self.services.hosts
        assert care is not None
        offer = await care.offered_key(host)
        if await self._ask(f"trust the key of {host}?", _offer_lines(offer), "trust it"):
            await care.trust(host, offer.fingerprint)
            self.console_app.tell(f"the key of {host} is trusted from now on")

    def do_forget(self, context: Context) -> None:
        """Asks, then forgets the trusted key."""
        if context.host is not None:
            host = context.host.host
            self._care(lambda: self._forget(host))

    async def _forget(self, host: str) -> None:
        assert self.services.hosts is not None
        lines: list[Pieces] = [
            (("Only do this when you know that the host was set up again or got a new key.", "text"),),
            (("The next connection shows the new fingerprint and asks before it is trusted.", "dim"),),
        ]
        if await self._ask(f"forget the key of {host}?", lines, "forget it"):
            await self.services.hosts.forget(host)
            self.console_app.tell(f"the key of {host} is forgotten: T shows the new one")

    async def _ask(self, title: str, lines: list[Pieces], yes: str) -> bool:
        from dflash_console.tui.screens.confirm import AskScreen

        answer: bool = await self.console_app.push_screen_wait(AskScreen(title, lines, yes, danger=True))
        return answer

    def _care(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.console_app.background(self.app, work, "hosts", group="hosts")


def _offer_lines(offer: KeyOffer) -> list[Pieces]:
    lines: list[Pieces] = [
        (("host         ", "dim"), (offer.address, "text")),
        (("key type     ", "dim"), (offer.key_type, "text")),
        (("fingerprint  ", "dim"), (offer.fingerprint, "accent-strong")),
    ]
    if offer.known_fingerprint:
        lines.append((("known before ", "dim"), (offer.known_fingerprint, "bad")))
    lines += [
        (),
        (("Trust it only when the host itself shows the same fingerprint:", "text"),),
        ((offer.compare_with or "ssh-keygen -lf on the host's public key", "accent"),),
    ]
    return lines


def _row(host: LinkStatus, now: float) -> Row:
    glyph, role = LINK_GLYPHS[host.state]
    retry = fig.duration(max(0.0, host.retry_at - now)) if host.retry_at is not None else ""
    seen = fig.age(host.last_seen, now, always=True)
    message = host.message
    if host.state is LinkState.KEY_UNKNOWN:
        message = message or "T shows the fingerprint"
    return Row(
        host.host,
        {
            "glyph": ((glyph, role),),
            "host": ((host.host, "strong"),),
            "state": ((str(host.state), role),),
            "since": ((fig.age(host.since, now, always=True), "dim"),),
            "seen": ((seen, "dim" if host.state is LinkState.UP else "warn"),),
            "retry": ((retry, "dim"),),
            "message": ((message, "text"),),
        },
    )
