"""Real SGLang servers on the CPU, found as foreign servers and audited over a real sshd."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from e2e.console_driver import Console
from rigs.sglang_cpu.rig import SglangRig
from rigs.sshd import Sshd

PAIR = Path(str(resources.files("dflash_engine"))) / "data" / "reference_pair"
CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"

[servers.one]
host = "rig"
port = {port}
"""


@pytest.mark.sglang
@pytest.mark.sshd
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "more", "verdict", "attended"),
    [
        ("0.5.11", (), "ignored", [(None, False), (None, False), (None, False)]),
        (
            "0.5.11",
            ("--speculative-dflash-draft-window-size", "256"),
            "clamped",
            [(256, False), (256, False), (256, False)],
        ),
        ("0.5.14", (), "enforced", [(256, True), (256, True), (None, False)]),
    ],
    ids=["0.5.11", "0.5.11 with the flag", "0.5.14"],
)
def test_the_origin_story_in_real_sglang(
    sshd: Sshd,
    tmp_path: Path,
    version: str,
    more: tuple[str, ...],
    verdict: str,
    attended: list[tuple[int | None, bool]],
) -> None:
    """The log prints the same line in the right and in the wrong case; the sources of the process tell."""
    rig = SglangRig(version).require()
    served = rig.serve(tmp_path / "log", target=PAIR / "target", drafter=PAIR / "drafter", more=more)
    with served as server:
        port = urlsplit(server.url).port
        console = Console(sshd, CONFIG.format(python=sys.executable, port=port), {})
        done = console.run("audit", "one", "--json")
        assert done.document["verdict"] == verdict, done.out
        assert done.code == (0 if verdict == "enforced" else 1)
        assert [(row["attended"], row["causal"]) for row in done.document["layers"]] == attended
        assert done.document["python"] == str(rig.python)
        strengths = {p["strength"] for row in done.document["layers"] for p in row["evidence"]}
        assert {"config", "source"} <= strengths
        assert done.document["cached_window"] == (256 if more else None)
        assert console.server("one")["audit"] == verdict
