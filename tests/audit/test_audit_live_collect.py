"""What the audit brings from a host: found as the server's interpreter would, and never run or changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest

from dflash_backend.audit.collect import Collected, Wanted, collect
from dflash_backend.audit.inputs import SOURCE_PATTERNS
from dflash_backend.hostside import audit_files
from dflash_backend.ssh.session import SshLink
from rigs.sshd import Sshd

pytestmark = pytest.mark.sshd
BOOBY_TRAP = "import os, sys\nopen(os.environ.get('HOME', '/tmp') + '/imported', 'w')\nsys.exit(3)\n"
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Fake:
    """Environments on the host whose every module would tell that it was imported."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home

    def venv(self, name: str) -> Path:
        folder = self.folder / name
        site = folder / "lib" / NAME / "site-packages"
        site.mkdir(parents=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)
        (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {NAME}\n")
        return folder

    def site(self, venv: Path) -> Path:
        return venv / "lib" / NAME / "site-packages"

    def sglang(self, place: Path, version: str, *, dist_info: Path | None = None) -> Path:
        package = place / "sglang"
        (package / "srt" / "models").mkdir(parents=True)
        (package / "__init__.py").write_text(BOOBY_TRAP)
        (package / "_version.py").write_text(f"__version__ = version = '{version}'\nimport os\n{BOOBY_TRAP}")
        (package / "srt" / "models" / "dflash.py").write_text(f"# of {version}\n{BOOBY_TRAP}")
        (package / "srt" / "server_args.py").write_text(BOOBY_TRAP)
        info = (dist_info or place) / f"sglang-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
        return package

    def untouched(self) -> bool:
        return not (self.home / "imported").exists()


@pytest.fixture
def fake(sshd: Sshd, tmp_path: Path) -> Fake:
    return Fake(tmp_path / "host", sshd.remote_home)


@pytest.fixture
async def link(sshd: Sshd) -> AsyncIterator[SshLink]:
    value = SshLink(sshd.host_config(python=sys.executable))
    yield value
    await value.close()


def dflash(found: Collected) -> str:
    assert found.source is not None, found.source_missing
    return (found.source.read("sglang/srt/models/dflash.py") or b"").decode().splitlines()[0]


async def test_sources_of_the_interpreter_that_runs_the_server(link: SshLink, fake: Fake) -> None:
    old, new = fake.venv("old"), fake.venv("new")
    fake.sglang(fake.site(old), "0.5.11")
    fake.sglang(fake.site(new), "0.5.14")
    for python, version in ((old / "bin" / "python", "0.5.11"), (new, "0.5.14")):
        argv = [str(python), "-m", "sglang.launch_server"] if python.name == "python" else []
        found = await collect(link, Wanted(argv=argv, python=str(python)))
        assert dflash(found) == f"# of {version}"
        assert found.sglang_version == version
        assert found.source is not None
        assert f"sglang-{version}.dist-info" in found.source.names("")
        assert found.source_changed_at is not None
    assert fake.untouched()


async def test_the_process_itself_tells_interpreter_folder_and_cache(link: SshLink, fake: Fake) -> None:
    venv = fake.venv("served")
    fake.sglang(fake.site(venv), "0.5.12")
    cache = fake.folder / "cache"
    commit = "a" * 40
    snapshot = cache / "hub" / "models--z-lab--K-DFlash" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (cache / "hub" / "models--z-lab--K-DFlash" / "blob").write_text('{"sliding_window": 2048}')
    (snapshot / "config.json").symlink_to("../../blob")
    refs = cache / "hub" / "models--z-lab--K-DFlash" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    server = subprocess.Popen(
        [str(venv / "bin" / "python"), "-c", "import sys; sys.stdin.read()",
         "--speculative-draft-model-path=z-lab/K-DFlash", "--api-key", "topsecret-1"],
        stdin=subprocess.PIPE,
        env={"HF_HOME": str(cache), "HOME": str(fake.home), "SECRET": "hidden-value", "PATH": os.defpath},
        cwd=fake.folder,
    )  # fmt: skip
    try:
        found = await collect(link, Wanted(pid=server.pid))
    finally:
        server.communicate()
    assert found.python == str(venv / "bin" / "python")
    assert dflash(found) == "# of 0.5.12"
    assert found.drafter == b'{"sliding_window": 2048}'
    assert commit in found.drafter_where
    assert found.started_at is not None
    assert "topsecret-1" not in repr(found)
    assert "hidden-value" not in repr(found)


async def test_two_installations_are_both_told_and_the_imported_one_is_read(
    link: SshLink, fake: Fake
) -> None:
    venv = fake.venv("both")
    fake.sglang(fake.site(venv), "0.5.14")
    other = fake.folder / "checkout" / "python"
    fake.sglang(other, "0.5.11.dev0", dist_info=fake.site(venv))
    # A .pth line comes behind its site-packages, PYTHONPATH before it.
    (fake.site(venv) / "__editable__.sglang.pth").write_text(f"{other}\n")
    argv = [str(venv / "bin" / "python"), "-m", "sglang.launch_server"]
    found = await collect(link, Wanted(argv=argv))
    assert [one.version for one in found.installations] == ["0.5.14", "0.5.11.dev0"]
    assert dflash(found) == "# of 0.5.14"
    found = await collect(link, Wanted(argv=argv, env={"PYTHONPATH": str(other)}))
    assert dflash(found) == "# of 0.5.11.dev0"
    found = await collect(link, Wanted(argv=argv, cwd=str(other)))
    assert dflash(found) == "# of 0.5.11.dev0", "python -m looks into the working folder first"


async def test_an_editable_install_by_pth_or_by_finder(link: SshLink, fake: Fake) -> None:
    venv = fake.venv("editable")
    tree = fake.folder / "work" / "sglang" / "python"
    package = fake.sglang(tree, "0.5.13", dist_info=fake.site(venv))
    finder = fake.site(venv) / "__editable___sglang_0_5_13_finder.py"
    finder.write_text(
        f"import os\nMAPPING: dict[str, str] = {{'sglang': {str(package)!r}}}\n"
        f"NAMESPACES: dict = {{}}\n{BOOBY_TRAP}"
    )
    (fake.site(venv) / "__editable__.sglang-0.5.13.pth").write_text(
        "import __editable___sglang_0_5_13_finder; __editable___sglang_0_5_13_finder.install()\n"
    )
    found = await collect(link, Wanted(python=str(venv)))
    assert dflash(found) == "# of 0.5.13"
    assert found.installations[0].where == str(package)
    assert fake.untouched()
    finder.write_text("MAPPING = __import__('os').environ\n")
    found = await collect(link, Wanted(python=str(venv)))
    assert found.source is None
    assert "mapping is no plain dictionary" in found.source_missing


async def test_an_archive_on_the_path_is_read_and_one_that_lies_about_is_named(
    link: SshLink, fake: Fake
) -> None:
    venv = fake.venv("zipped")
    egg = fake.folder / "sglang-0.5.11.egg"
    with zipfile.ZipFile(egg, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sglang/__init__.py", BOOBY_TRAP)
        archive.writestr("sglang/srt/models/dflash.py", "# in the egg\n")
        archive.writestr("sglang/srt/models/deeper/dflash.py", "# not asked for\n")
        archive.writestr("sglang/srt/layers/attention/triton_backend.py", b"#" * 5_000_000)
    found = await collect(link, Wanted(python=str(venv), env={"PYTHONPATH": str(egg)}))
    assert dflash(found) == "# in the egg"
    assert any("too large" in text for text in found.unread)
    assert found.source is not None
    assert set(found.source.files) == {"sglang/srt/models/dflash.py"}

    egg.rename(fake.site(venv) / "sglang-0.5.11-py3-none-any.whl")
    found = await collect(link, Wanted(python=str(venv)))
    assert found.source is None
    assert "archive that was never installed" in found.source_missing


async def test_what_cannot_be_read_is_a_reason(link: SshLink, fake: Fake) -> None:
    venv = fake.venv("bare")
    found = await collect(link, Wanted(python=str(venv)))
    assert found.source is None
    assert "SGLang is not installed in" in found.source_missing
    found = await collect(link, Wanted(python="/no/such/venv/bin/python"))
    assert "there is no interpreter /no/such/venv/bin/python" in found.source_missing

    package = fake.sglang(fake.site(venv), "0.5.14")
    model = package / "srt" / "models" / "dflash.py"
    model.unlink()
    os.mkfifo(model)
    (package / "srt" / "server_args.py").unlink()
    (package / "srt" / "server_args.py").symlink_to("server_args.py")
    found = await collect(link, Wanted(python=str(venv)))
    assert found.source is not None
    assert found.source.read("sglang/srt/models/dflash.py") is None
    assert any("not a regular file" in text for text in found.unread)
    assert any("server_args.py" in text for text in found.unread), found.unread


@pytest.mark.parametrize("closed", ["the file", "the package", "site-packages", "the drafter"])
def test_without_permission(fake: Fake, tmp_path: Path, closed: str) -> None:
    venv = fake.venv("closed")
    package = fake.sglang(fake.site(venv), "0.5.14")
    config = fake.folder / "drafter" / "config.json"
    config.parent.mkdir()
    config.write_text("{}")
    place = {
        "the file": package / "srt" / "models" / "dflash.py",
        "the package": package,
        "site-packages": fake.site(venv),
        "the drafter": config,
    }[closed]
    place.chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    request = {"python": str(venv), "patterns": list(SOURCE_PATTERNS), "drafter": str(config.parent)}
    # Root may read everything: as nobody it may not.
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        answer = audit_files.main(request, print, BytesIO())
    finally:
        os.seteuid(before)
        place.chmod(0o755)
    told = [
        answer["source"].get("problem", ""),
        *answer["source"].get("unread", []),
        *answer["problems"],
        answer["drafter"].get("problem", ""),
    ]
    assert any(f"{place}: Permission denied" in text for text in told), told


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", None),
        (b'{"sliding_window": 20', None),
        (b"x" * 50_000_000, "50.0 MB, larger than"),
        ("fifo", "not a regular file"),
        ("folder", "Is a directory"),
        ("loop", "symbolic links"),
    ],
    ids=["missing", "empty", "half", "50 MB", "pipe", "folder", "loop"],
)
async def test_a_drafter_folder(
    link: SshLink, fake: Fake, content: bytes | str | None, reason: str | None
) -> None:
    folder = fake.folder / "drafter"
    folder.mkdir(parents=True)
    config = folder / "config.json"
    match content:
        case bytes():
            config.write_bytes(content)
        case "fifo":
            os.mkfifo(config)
        case "folder":
            config.mkdir()
        case "loop":
            config.symlink_to("config.json")
    found = await collect(link, Wanted(python=sys.executable, drafter=str(folder)))
    if reason is None:
        assert found.drafter == content
        assert found.drafter_where == str(config)
    else:
        assert found.drafter is None
        assert reason in found.drafter_missing


async def test_a_drafter_by_id(link: SshLink, fake: Fake) -> None:
    hub = fake.home / ".cache" / "huggingface" / "hub"
    wanted = Wanted(python=sys.executable, drafter="z-lab/K-DFlash")
    found = await collect(link, wanted)
    assert found.drafter is None
    assert str(hub) in found.drafter_missing
    assert "is in no Hugging Face cache" in found.drafter_missing

    model = hub / "models--z-lab--K-DFlash"
    one = model / "snapshots" / ("1" * 40)
    one.mkdir(parents=True)
    (one / "config.json").write_text("{}")
    found = await collect(link, wanted)
    assert found.drafter == b"{}"
    assert "the only snapshot" in found.drafter_note

    two = model / "snapshots" / ("2" * 40)
    two.mkdir()
    (two / "config.json").write_text('{"two": 2}')
    assert "2 snapshots there" in (await collect(link, wanted)).drafter_missing
    argv = ["python3", "-m", "sglang.launch_server", "--speculative-draft-model-path", "z-lab/K-DFlash"]
    pinned = Wanted(argv=[*argv, "--speculative-draft-model-revision", "2" * 40])
    assert (await collect(link, pinned)).drafter == b'{"two": 2}'

    for odd in ("../../etc/passwd", "a/b/c", "\x1b[31mred", "/etc/passwd", "~/nothing", "a/b\nc"):
        found = await collect(link, Wanted(python=sys.executable, drafter=odd))
        assert found.drafter is None
        assert found.drafter_missing
        assert "\x1b" not in found.drafter_missing


async def test_the_beginning_of_a_long_log_and_what_counts_behind_it(link: SshLink, fake: Fake) -> None:
    fake.folder.mkdir()
    log = fake.folder / "log"
    noise = "[2026-11-30 12:00:00] NCCL INFO Channel 00/08 : \x1b[31m0 1 2\x1b[0m\n"
    line = "[2026-11-30 12:01] Initialized DFLASH draft runner. draft_window_size=None, compact_cache=False"
    log.write_text("[…] first line\n" + noise * 20_000 + line + "\n" + noise * 20_000)
    found = await collect(link, Wanted(python=sys.executable, log=str(log)))
    assert found.log is not None
    assert found.log[0] == "[…] first line"
    assert line in found.log
    assert sum(map(len, found.log)) < 400_000
    assert not any("\x1b" in one for one in found.log)

    log.rename(log.with_name("log.1"))
    log.write_text("after the rotation\n")
    found = await collect(link, Wanted(python=sys.executable, log=str(log)))
    assert found.log is not None
    assert found.log[0] == "[…] first line"
    found = await collect(link, Wanted(python=sys.executable, log=str(fake.folder / "none")))
    assert found.log is None
    assert "No such file" in found.log_missing


async def test_a_plugin_and_its_metadata_are_named(link: SshLink, fake: Fake) -> None:
    venv = fake.venv("plugged")
    fake.sglang(fake.site(venv), "0.5.11")
    plugins = "sglang.srt.plugins"
    for name, group in (
        ("dflash_sglang_plugin-0.1.0", plugins),
        ("other_thing-2.0", plugins),
        ("unrelated-1.0", "console_scripts"),
    ):
        info = fake.site(venv) / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\na = b:c\n")
    found = await collect(link, Wanted(python=str(venv)))
    assert found.source is not None
    infos = [name for name in found.source.names("") if name.endswith(".dist-info")]
    assert infos == [
        "dflash_sglang_plugin-0.1.0.dist-info", "other_thing-2.0.dist-info", "sglang-0.5.11.dist-info"
    ]  # fmt: skip


async def test_a_built_in_drafter(link: SshLink) -> None:
    found = await collect(link, Wanted(python=sys.executable, drafter="builtin:drafter"))
    assert found.drafter is not None, found.drafter_missing
    assert json.loads(found.drafter)["sliding_window"] == 256
    assert (
        "no built-in model"
        in (await collect(link, Wanted(python=sys.executable, drafter="builtin:x"))).drafter_missing
    )
