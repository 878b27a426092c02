"""Where an interpreter would find a package, worked out from files alone: nothing is run or imported.

The interpreter need not be the one that runs this: a server may live in another environment. What Python
does at its start (``site``) is followed: the working folder for ``-m``, PYTHONPATH, user site, site-packages,
``.pth`` lines, and setuptools' editable finders (whose mapping is read as a literal).
"""

from __future__ import annotations

import ast
import glob
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SMALL = 1 << 20
"""Bytes of a .pth, finder or METADATA file; larger ones are not what they say."""
_ARCHIVES = (".egg", ".zip", ".whl")


class Interpreter:
    """An interpreter on disk: its site-packages folders and what leads to further ones."""

    def __init__(self, python: str, env: Mapping[str, str], cwd: str) -> None:
        self.env = env
        self.cwd = cwd
        self.problems: list[str] = []
        self.asked = python
        self.path = self._find(python)
        self.prefix, self.venv, self.system_site = self._prefix()

    def _find(self, python: str) -> str:
        """The file of an interpreter that may be a name, a venv folder or a path; "" when there is none."""
        python = os.path.expanduser(python)
        if os.path.isdir(python):
            python = os.path.join(python, "bin", "python")
            if not os.path.lexists(python):
                python += "3"
        if os.sep not in python:
            return shutil.which(python, path=self.env.get("PATH")) or ""
        python = os.path.normpath(os.path.join(self.cwd, python))
        return python if os.path.lexists(python) else ""

    def _prefix(self) -> tuple[str, bool, bool]:
        """(prefix, whether it is a virtual environment, whether that sees the system's packages)."""
        path = self.path
        for _ in range(16):
            folder = os.path.dirname(path)
            for home in (os.path.dirname(folder), folder):
                try:
                    text = small_text(os.path.join(home, "pyvenv.cfg"))
                except OSError:
                    continue
                system = re.search(r"(?im)^\s*include-system-site-packages\s*=\s*true\s*$", text)
                return home, True, system is not None
            if not os.path.islink(path):
                break
            path = os.path.normpath(os.path.join(folder, os.readlink(path)))
        return os.path.dirname(os.path.dirname(path)) if path else "", False, True

    def site_folders(self) -> list[str]:
        """Folders of installed packages in the order in which they are searched."""
        found: list[str] = []
        if not self.venv or self.system_site:
            found += self._user_site()
        found += self._under(self.prefix)
        if self.venv and self.system_site:
            base = os.path.dirname(os.path.dirname(os.path.realpath(self.path)))
            found += self._under(base)
        return _unique(found)

    def _under(self, prefix: str) -> list[str]:
        if not prefix:
            return []
        name = self._version_folder(prefix)
        folders = [
            os.path.join(prefix, lib, name, kind)
            for lib in ("lib", "lib64")
            for kind in ("site-packages", "dist-packages")
        ]
        if prefix == "/usr":  # Debian keeps its own and the administrator's packages apart
            folders = ["/usr/local/lib/" + name + "/dist-packages", *folders]
            folders.append("/usr/lib/python3/dist-packages")
        return [folder for folder in folders if os.path.isdir(folder)]

    def _version_folder(self, prefix: str) -> str:
        """``python3.11``: from the interpreter's name, from what there is, the one with packages first."""
        for name in (os.path.basename(os.path.realpath(self.path)), os.path.basename(self.path)):
            if re.fullmatch(r"python3\.\d+", name):
                return name
        there = glob.glob(os.path.join(glob.escape(prefix), "lib", "python3.*"))
        there.sort(key=lambda folder: (os.path.isdir(os.path.join(folder, "site-packages")), folder))
        return os.path.basename(there[-1]) if there else "python3"

    def _user_site(self) -> list[str]:
        home = self.env.get("HOME") or os.path.expanduser("~")
        base = self.env.get("PYTHONUSERBASE") or os.path.join(home, ".local")
        if self.env.get("PYTHONNOUSERSITE"):
            return []
        folder = os.path.join(base, "lib", self._version_folder(self.prefix), "site-packages")
        return [folder] if os.path.isdir(folder) else []


class SearchPath:
    """Entries in the order of ``sys.path``, and packages that editable finders map."""

    def __init__(self, interpreter: Interpreter, argv: Sequence[str]) -> None:
        self.problems = interpreter.problems
        self.entries: list[str] = []
        self.mapped: dict[str, str] = {}
        self.site = interpreter.site_folders()
        if _sees_cwd(argv):
            self.entries.append(interpreter.cwd)
        for entry in interpreter.env.get("PYTHONPATH", "").split(os.pathsep):
            if entry:
                self.entries.append(os.path.normpath(os.path.join(interpreter.cwd, entry)))
        for folder in self.site:
            self.entries.append(folder)
            self._read_pth(folder)
        self.entries = _unique(self.entries)

    def _read_pth(self, folder: str) -> None:
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
        except OSError as error:
            self.problems.append(said(folder, error))
            return
        for name in names[:500]:
            try:
                text = small_text(os.path.join(folder, name))
            except OSError as error:
                self.problems.append(said(os.path.join(folder, name), error))
                continue
            for line in text.splitlines()[:1000]:
                line = line.strip()
                if line.startswith(("import ", "import\t")):
                    self._read_finder(folder, line)
                elif line and not line.startswith("#"):
                    entry = os.path.normpath(os.path.join(folder, line))
                    if os.path.exists(entry):
                        self.entries.append(entry)

    def _read_finder(self, folder: str, line: str) -> None:
        """An editable finder's ``MAPPING``, a dictionary of literals; the import itself is not done."""
        found = re.match(r"import\s+(__editable___\w+_finder)\b", line)
        if found is None:
            return
        path = os.path.join(folder, found.group(1) + ".py")
        try:
            tree = ast.parse(small_text(path))
        except (OSError, SyntaxError, ValueError) as error:
            self.problems.append(f"{path}: the editable install cannot be read: {error}")
            return
        for node in tree.body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if any(getattr(target, "id", "") == "MAPPING" for target in targets):
                try:
                    mapping = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                    self.mapped.update((str(k), str(v)) for k, v in mapping.items())
                except (ValueError, AttributeError, TypeError):
                    self.problems.append(path + ": its mapping is no plain dictionary")

    def copies(self, package: str) -> list[dict[str, Any]]:
        """Every copy of a package in the order of import: ``folder`` or ``archive``; the first one counts."""
        regular: list[dict[str, Any]] = []
        bare: list[dict[str, Any]] = []
        for entry in self.entries:
            if os.path.isfile(entry):
                if entry.endswith(_ARCHIVES) and _in_archive(entry, package):
                    regular.append({"archive": entry, "beside": os.path.dirname(entry)})
                continue
            folder = os.path.join(entry, package)
            if os.path.isfile(os.path.join(folder, "__init__.py")):
                regular.append({"folder": folder, "beside": entry})
            elif os.path.isdir(folder):
                try:
                    os.listdir(folder)
                except OSError as error:
                    self.problems.append(said(folder, error))
                bare.append({"folder": folder, "beside": entry})
        if package in self.mapped and os.path.isdir(self.mapped[package]):
            folder = self.mapped[package]
            regular.append({"folder": folder, "beside": os.path.dirname(folder)})
        unique: dict[str, dict[str, Any]] = {}
        for one in [*regular, *bare]:
            place = one.get("folder") or one["archive"]
            unique.setdefault(os.path.realpath(place), one)
        return list(unique.values())


def _sees_cwd(argv: Sequence[str]) -> bool:
    """Whether ``python ... -m module`` puts the working folder first."""
    for word in argv[1:]:
        if word.startswith("-") and not word.startswith("--"):
            if word.startswith(("-I", "-P")):
                return False
            if word.startswith("-m"):
                return True
        else:
            return False
    return False


def _in_archive(path: str, package: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo(package + "/__init__.py")
            return True
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError):
        return False


def _unique(items: Sequence[str]) -> list[str]:
    seen: dict[str, str] = {}
    for item in items:
        seen.setdefault(os.path.realpath(item), item)
    return list(seen.values())


def small_text(path: str) -> str:
    """The text of a small regular file. Raises OSError."""
    return read_bounded(path, MAX_SMALL).decode("utf-8", "replace")


def read_bounded(path: str, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises OSError with the reason in words."""
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if status.st_mode & 0o170000 != 0o100000:
            raise OSError(0, "not a regular file", path)
        if status.st_size > limit:
            raise OSError(0, f"{status.st_size / 1e6:.1f} MB, larger than {limit / 1e6:.1f} MB", path)
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(0, f"larger than {limit / 1e6:.1f} MB", path)
    return data


def said(path: str, error: OSError) -> str:
    """An operating system error in words, with the path."""
    return f"{path}: {error.strerror or error}"
