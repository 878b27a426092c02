"""The doctor over a real sshd: hosts that are fit, hosts that are not, and hosts that cannot be asked."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from dflash_backend.core.inventory import HostConfig, ServerConfig
from dflash_backend.doctor.check import check_host, needs_sglang
from dflash_backend.doctor.report import Finding, HostReport
from dflash_backend.profiles.store import ProfileStore
from dflash_backend.ssh.connect import Settings
from dflash_backend.ssh.pool import SshPool
from rigs.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd


async def check(host: HostConfig, ports: tuple[int, ...] = (), *, sglang: bool = True) -> HostReport:
    pool = SshPool({host.name: host}, settings=Settings(connect_timeout=5))
    try:
        return await check_host(pool.link(host.name), ports=ports, sglang=sglang)
    finally:
        await pool.close()


def named(report: HostReport) -> dict[str, Finding]:
    return {finding.name: finding for finding in report.findings}


def make_python(folder: Path, site: Path, *, path: Path | None = None) -> str:
    """An interpreter that finds what ``site`` holds, as a venv would."""
    script = folder / "python"
    search = f'PATH="{path}"; export PATH\n' if path else ""
    # -I drops PYTHONPATH, so the folder is added in front of the program.
    script.write_text(
        f"#!/bin/sh\n{search}shift 2; code=$1; shift\n"
        f'exec "{sys.executable}" -I -c "import sys; sys.path.insert(0, \'{site}\'); $code" "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def install(site: Path, name: str, version: str, *, entry: str = "", editable: bool = False) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry:
        (info / "entry_points.txt").write_text(entry)
    if editable:
        (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')


def sglang_source(site: Path, body: str) -> None:
    folder = site / "sglang" / "srt"
    folder.mkdir(parents=True)
    # Importing it would fail: it must be read, never run.
    (site / "sglang" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "server_args.py").write_text(body)


NEW_STYLE = """
class ServerArgs:
    model_path: A[str, "help"]
    host: A[str, "help"] = "127.0.0.1"
    port: A[int, "help"] = 30000
    enable_metrics: A[bool, "help"] = False
    mem_fraction_static: A[Optional[float], "help"] = None
    context_length: A[Optional[int], "help"] = None
    max_running_requests: A[Optional[int], "help"] = None
    tp_size: A[int, Arg(help="x", aliases=["--tensor-parallel-size", "--tp"])] = 1
    attention_backend: A[Optional[str], "help"] = None
    speculative_algorithm: A[Optional[str], "help"] = None
    speculative_draft_model_path: A[Optional[str], "help"] = None
    speculative_num_draft_tokens: A[Optional[int], "help"] = None
    speculative_dflash_block_size: A[Optional[int], "help"] = None
    speculative_draft_window_size: A[Optional[int], "--not-an-option"] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    renamed: A[bool, Arg(cli_name="--other-name")] = False
"""


async def test_a_plain_host(sshd: Sshd) -> None:
    free = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        report = await check(sshd.host_config(), (free, busy))
    found = named(report)
    assert [finding.name for finding in report.findings] == [
        "ssh", "host key", "forwarding", "python", "sglang", "flags", "plugin", "gpus", "disk", "services",
        *(f"port {port}" for port in sorted((free, busy))),
    ]  # fmt: skip
    for name in ("ssh", "host key", "forwarding", "python", f"port {free}"):
        assert found[name].status == "ok", found[name]
    assert found["sglang"].status == "fail"
    assert "not installed" in found["sglang"].text
    assert found["sglang"].next_step
    assert found["flags"].status == "unknown"
    assert found[f"port {busy}"].status == "warn"
    assert "pid" in found[f"port {busy}"].text
    assert report.exit_code == 1
    assert json.loads(json.dumps(report.to_json()))["ok"] is False
    # It left nothing behind.
    assert list(sshd.remote_home.iterdir()) == []


async def test_sglang_and_plugin_are_read_and_not_imported(sshd: Sshd, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "sglang", "0.5.21", editable=True)
    install(
        site,
        "dflash-sglang-plugin",
        "0.1.0",
        entry="[sglang.srt.plugins]\ndflash_sglang = dflash_sglang.entry:register\n",
    )
    install(site, "other", "1", entry="[sglang.srt.plugins]\nother = other:register\n")
    sglang_source(site, NEW_STYLE)
    found = named(await check(sshd.host_config(python=make_python(tmp_path, site))))
    assert (found["sglang"].status, found["plugin"].status) == ("ok", "ok")
    assert found["sglang"].text == f"0.5.21 in {site} (editable)"
    assert "0.1.0" in found["plugin"].text
    # The source is not that of the release: the options that it lacks are told.
    assert found["flags"].status == "warn"
    assert "--speculative-draft-window-size" in found["flags"].text
    assert "are missing" in found["flags"].text


async def test_an_old_release_says_what_it_does_not_know(sshd: Sshd, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "sglang", "0.4.9")
    sglang_source(
        site, "parser.add_argument('--model-path', '--model', type=str)\nparser.add_argument('--port')\n"
    )
    found = named(await check(sshd.host_config(python=make_python(tmp_path, site))))
    assert found["sglang"].status == "fail"
    assert "older than" in found["sglang"].text
    assert found["flags"].status == "fail"
    assert "--speculative-algorithm" in found["flags"].text
    assert "--model-path" not in found["flags"].text


async def test_two_copies_are_told(sshd: Sshd, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "sglang", "0.5.14")
    install(site, "sglang", "0.5.11")
    sglang_source(site, NEW_STYLE)
    found = named(await check(sshd.host_config(python=make_python(tmp_path, site))))
    assert found["sglang"].status == "warn"
    assert "0.5.14" in found["sglang"].text
    assert "0.5.11" in found["sglang"].text


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.6.0", "warn"), ("0.5.14.dev3+gabc", "warn"), ("weird", "warn"), ("0.5.23", "ok")],
)
async def test_versions_that_are_not_in_the_table(
    version: str, status: str, sshd: Sshd, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site, "sglang", version)
    sglang_source(site, NEW_STYLE)
    found = named(await check(sshd.host_config(python=make_python(tmp_path, site))))
    assert found["sglang"].status == status


async def test_a_source_that_cannot_be_parsed(sshd: Sshd, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "sglang", "0.5.14")
    sglang_source(site, "def (:\n")
    found = named(await check(sshd.host_config(python=make_python(tmp_path, site))))
    assert found["flags"].status == "unknown"
    assert "server_args.py" in found["flags"].text


@pytest.mark.parametrize(
    ("smi", "status", "said"),
    [
        (
            "echo '0, NVIDIA H200, 570.1, 143771, 12'; echo '1, NVIDIA H200, 570.1, 143771, 0'",
            "ok",
            "2 x NVIDIA H200, 143771 MiB each; driver 570.1",
        ),
        ("echo '0, NVIDIA GB10, 580.1, [N/A], [N/A]'", "ok", "1 x NVIDIA GB10; driver 580.1"),
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
            "fail",
            "could not",
        ),
        ("printf '\\033]0;evil\\007Failed\\n'; exit 3", "fail", "Failed"),
        ("true", "warn", "lists none"),
        ("echo 'No devices were found'", "warn", "No devices"),
        ("echo '0, A, 1, 80000, 0'; echo '1, B, 1, 40000, 0'", "warn", "1 x A"),
    ],
)
async def test_gpus(smi: str, status: str, said: str, sshd: Sshd, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
    (tools / "nvidia-smi").chmod(0o755)
    python = make_python(tmp_path, tmp_path / "site", path=Path(f"{tools}:/usr/bin:/bin"))
    found = named(await check(sshd.host_config(python=python)))["gpus"]
    assert found.status == status, found
    assert said in found.text
    assert "\x1b" not in found.text


async def test_no_gpu_is_said_and_is_no_failure(sshd: Sshd, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    python = make_python(tmp_path, tmp_path / "site", path=tools)
    found = named(await check(sshd.host_config(python=python)))
    assert (found["gpus"].status, found["services"].status) == ("warn", "ok")
    assert "no GPU" in found["gpus"].text
    assert "no systemd" in found["services"].text


async def test_a_missing_interpreter(sshd: Sshd) -> None:
    report = await check(sshd.host_config(python="/opt/venv"), (30000,))
    found = named(report)
    assert found["ssh"].status == "ok"
    assert found["python"].status == "fail"
    assert "/opt/venv" in found["python"].text
    assert found["python"].next_step
    assert {found[name].status for name in ("sglang", "gpus", "disk", "port 30000")} == {"unknown"}
    assert report.exit_code == 1


async def test_an_unreachable_host(sshd: Sshd) -> None:
    sshd.stop()
    report = await check(sshd.host_config(), (30000,))
    found = named(report)
    assert (found["ssh"].status, found["host key"].status) == ("fail", "unknown")
    assert "nothing listens" in found["ssh"].text
    assert found["port 30000"].status == "unknown"
    assert report.exit_code == 3


async def test_an_unknown_key(sshd: Sshd) -> None:
    sshd.known_hosts.write_text("")
    report = await check(sshd.host_config())
    found = named(report)
    assert found["host key"].status == "fail"
    assert sshd.fingerprint() in found["host key"].text
    assert "hosts trust" in found["host key"].next_step
    assert report.exit_code == 4


async def test_a_refused_login(sshd: Sshd) -> None:
    (sshd.folder / "authorized_keys").write_text("")
    report = await check(sshd.host_config())
    found = named(report)
    assert (found["ssh"].status, found["host key"].status) == ("fail", "ok")
    assert report.exit_code == 4


async def test_a_broken_ssh_configuration(sshd: Sshd) -> None:
    sshd.ssh_config.write_text("Match nonsense\n")
    assert (await check(sshd.host_config())).exit_code == 2


async def test_forbidden_forwarding(sshd: Sshd) -> None:
    sshd.options["AllowTcpForwarding"] = "no"
    sshd.restart()
    found = named(await check(sshd.host_config()))
    assert found["forwarding"].status == "fail"
    assert found["forwarding"].next_step


async def test_a_host_whose_servers_need_no_sglang_lacks_nothing(sshd: Sshd) -> None:
    found = named(await check(sshd.host_config(), sglang=False))
    for name in ("sglang", "plugin"):
        assert found[name].status == "ok", found[name]
        assert "no server of this host needs it" in found[name].text


async def test_next_steps_name_the_host(sshd: Sshd) -> None:
    host = sshd.host_config()
    found = named(await check(host))
    assert found["plugin"].next_step == f"dflash-console plugin install {host.name}"


@pytest.mark.parametrize(
    ("profiles", "needed"),
    [
        ((), True),
        (("ref-chain", "ref-ar"), False),
        (("ref-chain", "qwen3-8b-ar"), True),
        (("ref-chain", None), True),
        (("no-such",), True),
    ],
)
def test_sglang_is_needed_unless_all_servers_run_something_else(
    profiles: tuple[str | None, ...], needed: bool
) -> None:
    servers = [ServerConfig(name=f"s{n}", host="h", port=n, profile=p) for n, p in enumerate(profiles, 1)]
    assert needs_sglang(servers, ProfileStore([])) is needed
