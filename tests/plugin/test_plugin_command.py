"""``plugin install|status|uninstall`` as processes, against a real sshd."""

import json
import os
import subprocess
import sys

import pytest

from dflash_backend.core.paths import state_dir
from plugin.test_plugin_install import Venv

pytestmark = pytest.mark.sshd


@pytest.fixture
def config(sshd, tmp_path):
    venv = Venv(tmp_path / "venv")
    path = tmp_path / "config.toml"
    path.write_text(f'[hosts.rig]\naddress = "rig"\npython = "{venv.folder}"\n')
    return str(path)


def run(config, *words):
    return subprocess.run(
        [sys.executable, "-m", "dflash_console", "--config", config, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )


def test_install_shows_what_is_there_and_uninstall_takes_it_out(config):
    first = run(config, "plugin", "status", "rig", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["plugin"]["installed"] is None

    done = run(config, "plugin", "install", "rig")
    assert done.returncode == 0, done.stderr
    assert "rig: installed; running servers see it when restarted" in done.stdout
    again = json.loads(run(config, "plugin", "install", "rig", "--json").stdout)
    assert (again["schema"], again["changed"], again["plugin"]["works"]) == (1, False, True)
    assert len(again["sha256"]) == 64

    assert json.loads(run(config, "plugin", "uninstall", "rig", "--json").stdout)["changed"] is True
    log = "".join(path.read_text() for path in state_dir().rglob("*") if path.is_file())
    assert log.count('"uninstall"') >= 2, "begin and end are in the action log"


def test_read_only_refuses_and_an_unknown_host_is_bad_usage(config):
    done = run(config, "--read-only", "plugin", "install", "rig")
    assert done.returncode == 4
    assert "read-only" in done.stderr
    assert run(config, "plugin", "status", "rigg").returncode == 2


def test_a_refusal_of_the_host_is_exit_4_with_the_next_step(config, tmp_path):
    (tmp_path / "bare").mkdir()
    Venv(tmp_path / "bare" / "venv", None)
    other = tmp_path / "other.toml"
    other.write_text(f'[hosts.rig]\naddress = "rig"\npython = "{tmp_path}/bare/venv"\n')
    done = run(str(other), "plugin", "install", "rig")
    assert done.returncode == 4
    assert "SGLang is not installed in" in done.stderr
    assert "set python for this host" in done.stderr
