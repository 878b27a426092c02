"""Installing the plugin over a real SSH connection: proven, all or nothing, gone without a trace."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dflash_backend import plugin_install
from dflash_backend.control.host_facts import ask_host
from dflash_backend.core.errors import FailedError, RefusedError
from dflash_backend.plugin_install import wheel
from dflash_backend.sglang.speculation import WINDOWS_FEATURE
from dflash_backend.ssh.link import HostLink
from dflash_backend.ssh.pool import SshPool
from rigs.sglang_cpu.rig import SglangRig
from rigs.sshd import Sshd

pytestmark = pytest.mark.sshd

POINTS = "[sglang.srt.plugins]\ndflash_sglang = dflash_sglang.entry:register\n"


class Venv:
    """A virtual environment on the host, with SGLang's metadata but none of its code."""

    def __init__(self, folder: Path, sglang: str | None = "0.5.11") -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.folder = folder
        self.site = next(folder.glob("lib/python3*/site-packages"))
        if sglang is not None:
            self.distribution(self.site, "sglang", sglang)

    @staticmethod
    def distribution(folder: Path, name: str, version: str, points: str = "") -> None:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)

    def files(self) -> dict[str, bytes]:
        """Everything in it, byte code too."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }

    def python(self, code: str) -> str:
        argv = [str(self.folder / "bin" / "python"), "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "venv")


@pytest.fixture
async def connect(sshd: Sshd) -> AsyncIterator[object]:
    """Links to the sshd with this ``python`` and ``env``."""
    pools: list[SshPool] = []

    def link(folder: Path, **env: str) -> HostLink:
        pools.append(SshPool({"gpu1": sshd.host_config(name="gpu1", python=str(folder), env=env)}))
        return pools[-1].link("gpu1")

    yield link
    for pool in pools:
        await pool.close()


@pytest.fixture
def older() -> wheel.Wheel:
    """The plugin as an earlier console would have sent it."""
    files = dict(wheel._package_files())
    files["__init__.py"] = files["__init__.py"].replace(wheel.build().version.encode(), b"0.0.9")
    files["left_behind.py"] = b"OLD = True\n"
    return wheel.pack("0.0.9", files)


async def test_installs_proves_and_removes_without_a_trace(venv, connect):
    link = connect(venv.folder)
    before = venv.files()
    assert (await plugin_install.status(link)).installed is None

    done = await plugin_install.install(link)
    assert done.changed
    assert done.status.works, done.status.problems
    assert done.status.installed == done.status.available == wheel.build().version
    assert done.status.sglang == "0.5.11"
    assert Path(done.status.where or "").samefile(venv.site)
    assert venv.python("import dflash_sglang.entry, sys; print('torch' in sys.modules)") == "False"

    removed = await plugin_install.uninstall(link)
    assert removed.changed
    assert removed.status.installed is None
    assert venv.files() == before


async def test_plans_know_that_the_windows_hold_once_it_is_installed(venv, connect):
    link = connect(venv.folder)
    assert (await ask_host(link)).plugin_features == frozenset()
    await plugin_install.install(link)
    facts = await ask_host(link)
    assert facts.sglang_version == "0.5.11"
    assert facts.plugin_features == {WINDOWS_FEATURE}


async def test_doing_it_again_changes_nothing(venv, connect):
    link = connect(venv.folder)
    await plugin_install.install(link)
    first = venv.files()
    assert not (await plugin_install.install(link)).changed
    assert {k: v for k, v in venv.files().items() if "__pycache__" not in k} == {
        k: v for k, v in first.items() if "__pycache__" not in k
    }
    await plugin_install.uninstall(link)
    assert not (await plugin_install.uninstall(link)).changed


async def test_pip_knows_it_and_can_remove_it(venv, connect):
    await plugin_install.install(connect(venv.folder))
    pip = [sys.executable, "-m", "pip", "--python", str(venv.folder / "bin" / "python")]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        pytest.skip("no pip here")
    subprocess.run([*pip, "uninstall", "-y", "-q", wheel.DISTRIBUTION], check=True)
    assert not list(venv.site.glob("dflash_sglang*"))


async def test_an_upgrade_replaces_every_file(venv, connect, older, monkeypatch):
    link = connect(venv.folder)
    with monkeypatch.context() as patch:
        patch.setattr(wheel, "build", lambda: older)
        assert (await plugin_install.install(link)).status.installed == "0.0.9"
    before = await plugin_install.status(link)
    assert before.upgradable
    done = await plugin_install.install(link)
    assert done.changed
    assert done.status.installed == wheel.build().version
    assert not (venv.site / "dflash_sglang" / "left_behind.py").exists()
    assert len(list(venv.site.glob("dflash_sglang-*.dist-info"))) == 1


@pytest.mark.parametrize("version", ["0.5.10", "0.5.24", "1.0.0"])
async def test_an_unsupported_sglang_is_refused_with_the_reason(tmp_path, connect, version):
    venv = Venv(tmp_path / "other", version)
    before = venv.files()
    with pytest.raises(RefusedError) as error:
        await plugin_install.install(connect(venv.folder))
    assert f"does not know SGLang {version}; it knows 0.5.11 to 0.5.23" in error.value.what
    assert venv.files() == before


async def test_without_sglang_it_is_refused(tmp_path, connect):
    with pytest.raises(RefusedError, match="SGLang is not installed in") as error:
        await plugin_install.install(connect(Venv(tmp_path / "bare", None).folder))
    assert "set python for this host" in error.value.next_step


async def test_a_wheel_damaged_on_its_way_is_not_installed(venv, connect):
    good = wheel.build()
    sent = {
        "version": good.version,
        "sha256": good.sha256,
        "data": base64.b64encode(good.data[:-1] + b"x").decode(),
    }
    request = {"op": "install", "distribution": wheel.DISTRIBUTION, "package": wheel.PACKAGE}
    request |= {"entry_point": wheel.ENTRY_POINT, "wheel": sent, "supported": ["0.5.11"]}
    with pytest.raises(FailedError, match="damaged on its way"):
        await connect(venv.folder).run_program("plugin", request)
    assert not list(venv.site.glob("dflash_sglang*"))


async def test_a_changed_file_is_noticed_and_repaired(venv, connect):
    link = connect(venv.folder)
    await plugin_install.install(link)
    (venv.site / "dflash_sglang" / "windows.py").write_text("WINDOW = 4096\n")
    (venv.site / "dflash_sglang" / "report.py").unlink()
    seen = await plugin_install.status(link)
    assert not seen.works
    text = " ".join(seen.problems)
    assert "windows.py was changed" in text
    assert "report.py is missing" in text
    done = await plugin_install.install(link)
    assert done.changed
    assert done.status.works


async def test_foreign_files_among_its_own_are_never_deleted(venv, connect):
    link = connect(venv.folder)
    await plugin_install.install(link)
    note = venv.site / "dflash_sglang" / "my_notes.txt"
    note.write_text("keep")
    before = venv.files()
    with pytest.raises(RefusedError, match=r"my_notes\.txt"):
        await plugin_install.uninstall(link)
    assert venv.files() == before


async def test_a_second_copy_is_told_and_not_added_to(venv, connect, tmp_path):
    link = connect(venv.folder)
    other = tmp_path / "elsewhere"
    Venv.distribution(other, "dflash-sglang", "0.0.1", POINTS)
    (venv.site / "elsewhere.pth").write_text(f"{other}\n")
    with pytest.raises(RefusedError, match="installed a second time"):
        await plugin_install.install(link)
    (venv.site / "elsewhere.pth").unlink()
    await plugin_install.install(link)
    (venv.site / "elsewhere.pth").write_text(f"{other}\n")
    problems = (await plugin_install.status(link)).problems
    assert any("installed 2 times" in problem and str(other) in problem for problem in problems)


async def test_another_distribution_with_the_same_plugin_is_told(venv, connect):
    link = connect(venv.folder)
    await plugin_install.install(link)
    Venv.distribution(venv.site, "my-fork", "3.0", POINTS)
    problems = (await plugin_install.status(link)).problems
    assert any("my-fork" in problem for problem in problems)


async def test_files_of_another_distribution_are_not_taken_over(venv, connect):
    """As when the console is installed beside SGLang."""
    (venv.site / "dflash_sglang").mkdir()
    (venv.site / "dflash_sglang" / "__init__.py").write_text("# the console's\n")
    before = venv.files()
    with pytest.raises(RefusedError, match="is there already and belongs to something else"):
        await plugin_install.install(connect(venv.folder))
    assert venv.files() == before


async def test_settings_that_keep_it_out_are_told(venv, connect):
    await plugin_install.install(connect(venv.folder))
    kept_out = await plugin_install.status(connect(venv.folder, SGLANG_PLUGINS="other, more"))
    assert not kept_out.works
    assert kept_out.problems == ("SGLANG_PLUGINS=other, more keeps it out: add dflash_sglang, or unset it",)
    assert (await plugin_install.status(connect(venv.folder, SGLANG_PLUGINS="other,dflash_sglang"))).works
    off = await plugin_install.status(connect(venv.folder), env={"DFLASH_SGLANG_WINDOWS": "off"})
    assert off.problems == ("DFLASH_SGLANG_WINDOWS=off switches its windows off",)


async def test_when_a_server_would_load_something_else_it_is_undone(
    venv, connect, older, tmp_path, monkeypatch
):
    link = connect(venv.folder)
    with monkeypatch.context() as patch:
        patch.setattr(wheel, "build", lambda: older)
        await plugin_install.install(link)
    before = {k: v for k, v in venv.files().items() if "__pycache__" not in k}
    shadow = tmp_path / "shadow" / "dflash_sglang"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise RuntimeError('not the one')\n")
    with pytest.raises(FailedError, match=r"cannot load the plugin: RuntimeError: not the one.*undone"):
        await plugin_install.install(connect(venv.folder, PYTHONPATH=str(shadow.parent)))
    assert {k: v for k, v in venv.files().items() if "__pycache__" not in k} == before
    assert (await plugin_install.status(link)).installed == "0.0.9"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_leaves_what_was_there(venv, connect, small_disk):
    shutil.move(venv.site, small_disk / "site-packages")
    venv.site.symlink_to(small_disk / "site-packages")
    before = venv.files()
    with pytest.raises(FailedError, match="no space left") as error:
        await plugin_install.install(connect(venv.folder))
    assert "nothing was changed" in error.value.what
    assert venv.files() == before
    assert [path.name for path in venv.site.iterdir()] == ["sglang-0.5.11.dist-info"]


async def test_without_permission_it_is_refused(venv, connect, tmp_path):
    if os.geteuid() == 0:
        done = subprocess.run(["mount", "--bind", str(venv.site), str(venv.site)], capture_output=True)
        if done.returncode:
            pytest.skip("root may write everywhere, and cannot mount here")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(venv.site)], check=True)
    else:
        venv.site.chmod(0o555)
    try:
        with pytest.raises(RefusedError, match="no permission to write"):
            await plugin_install.install(connect(venv.folder))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(venv.site)], check=True)
        else:
            venv.site.chmod(0o755)


def test_the_wheel_is_the_same_every_time_and_the_consoles_own_distribution_has_no_entry_point():
    assert wheel.build() == wheel.build()
    assert "sglang.srt.plugins" not in (Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.mark.sglang
async def test_into_an_environment_with_the_real_sglang(connect, tmp_path):
    rig = SglangRig("0.5.11").require()
    python = rig.overlay(tmp_path / "venv")
    link = connect(python.parents[1])
    done = await plugin_install.install(link)
    assert done.status.works, done.status.problems
    code = "from sglang.srt import plugins; print(list(plugins.load_plugins_by_group('sglang.srt.plugins')))"
    found = subprocess.run(
        [str(python), "-c", code], env=rig.environment(), capture_output=True, text=True, check=True
    )
    assert "dflash_sglang" in found.stdout
    assert (await plugin_install.uninstall(link)).status.installed is None
