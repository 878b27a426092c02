"""``hosts trust`` and ``hosts forget`` as processes, against a real sshd."""

import json
import os
import subprocess
import sys

import pytest

from dflash_backend.core.paths import state_dir

pytestmark = pytest.mark.sshd


@pytest.fixture
def config(sshd, tmp_path):
    sshd.known_hosts.write_text("")
    path = tmp_path / "config.toml"
    path.write_text('[hosts.rig]\naddress = "rig"\n')
    return str(path)


def run(config, *words):
    return subprocess.run(
        [sys.executable, "-m", "dflash_console", "--config", config, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )


def test_an_unknown_key_is_shown_and_not_trusted_unasked(sshd, config):
    done = run(config, "hosts", "trust", "rig")
    assert done.returncode == 4
    assert sshd.fingerprint() in done.stderr
    assert "ssh-keygen -lf" in done.stderr
    assert "--fingerprint" in done.stderr
    assert not (state_dir() / "known_hosts").exists()


def test_another_fingerprint_is_no_yes(sshd, config):
    done = run(config, "hosts", "trust", "rig", "--fingerprint", "SHA256:" + "A" * 43)
    assert done.returncode == 4
    assert not (state_dir() / "known_hosts").exists()


def test_the_named_key_is_remembered_used_and_forgotten(sshd, config):
    done = run(config, "hosts", "trust", "rig", "--fingerprint", sshd.fingerprint(), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [key["fingerprint"] for key in document["trusted"]] == [sshd.fingerprint()]
    assert document["keys"][-1]["verdict"] == "trusted"
    actions = [json.loads(line) for line in (state_dir() / "actions.jsonl").read_text().splitlines()]
    assert [(a["action"], a["phase"], a["host"]) for a in actions] == [
        ("trust-key", "begin", "rig"),
        ("trust-key", "end", "rig"),
    ]
    again = run(config, "hosts", "trust", "rig")
    assert again.returncode == 0
    assert "trusted already" in again.stdout
    forgotten = run(config, "hosts", "forget", "rig")
    assert forgotten.returncode == 0, forgotten.stderr
    assert run(config, "hosts", "trust", "rig").returncode == 4


def test_a_host_that_does_not_answer_is_exit_3(sshd, config):
    sshd.stop()
    done = run(config, "hosts", "trust", "rig")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


async def test_the_screens_replace_no_changed_key_and_name_the_command_that_does(sshd):
    from dflash_backend.control.plane import ControlPlane
    from dflash_backend.core.errors import RefusedError
    from dflash_backend.core.inventory import Inventory
    from dflash_console.wiring import PoolHosts

    sshd.restart(new_host_key=True)
    plane = ControlPlane(Inventory(hosts={"rig": sshd.host_config()}))
    try:
        hosts = PoolHosts(plane)
        offer = await hosts.offered_key("rig")
        assert offer.known_fingerprint is not None
        with pytest.raises(RefusedError) as refused:
            await hosts.trust("rig", offer.fingerprint)
        assert "hosts trust rig --replace" in refused.value.next_step
        assert list(plane.log.entries()) == [], "nothing was done"
    finally:
        await plane.close()
