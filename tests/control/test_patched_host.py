"""A host whose SGLang was patched by hand: its source says that it has DDTREE, and the plan believes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_backend.control.host_facts import ask_host
from dflash_backend.core.profile import Algorithm
from dflash_backend.profiles.store import ProfileStore
from dflash_backend.sglang.argv import compose
from dflash_backend.sglang.command import HostAbilities
from dflash_backend.sglang.options import option_table
from dflash_backend.ssh.pool import SshPool

pytestmark = pytest.mark.sshd


def installed(folder: Path, version: str, options) -> None:
    """Puts into a site folder a distribution ``sglang`` whose server_args.py declares ``options``."""
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    lines = [f'    parser.add_argument("--{name}")' for name in options]
    (package / "server_args.py").write_text("def add_cli_args(parser):\n" + "\n".join(lines) + "\n")
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")


@pytest.mark.parametrize("patched", [True, False])
async def test_a_tree_is_planned_where_the_source_has_it(sshd, tmp_path, patched):
    options = [name for name, option in option_table().at("0.5.14").items() if not option.hidden]
    options += ["speculative-ddtree-budget", "speculative-ddtree-topk"] if patched else []
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    installed(next(venv.glob("lib/python3*/site-packages")), "0.5.14", options)
    pool = SshPool({"rig": sshd.host_config(python=str(venv))})
    try:
        facts = await ask_host(pool.link("rig"))
    finally:
        await pool.close()
    assert facts.sglang_version == "0.5.14"
    assert facts.options is not None
    assert ("speculative-ddtree-budget" in facts.options) == patched
    profile = ProfileStore([]).load("kimi-k26-ddtree8")
    assert profile.algorithm is Algorithm.DDTREE
    command = compose(profile, "0.5.14", python=None, port=1, abilities=HostAbilities(options=facts.options))
    assert ([r.text for r in command.refusals] == []) == patched
