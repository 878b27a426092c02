"""Adds a stub for every module that SGLang imports at start-up and the kit left out (IPython, datasets...).

A stub's attributes exist; calling one raises. Usage: autostub.py SITE_DIR
"""

import re
import subprocess
import sys
from pathlib import Path

IMPORTS = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.dflash",
    "sglang.srt.models.qwen3",
    "sglang.bench_serving",
)

STUB = '''"""Stand-in for a package that the kit left out."""

import importlib.abc
import importlib.machinery
import sys
import types


class _LeftOut:
    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **kwargs):
        raise RuntimeError(self._name + " was left out of the kit")

    def __getattr__(self, name):
        return _attribute(self._name, name)


def _attribute(parent, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _LeftOut(parent + "." + name)


class _Module(types.ModuleType):
    def __getattr__(self, name):
        return _attribute(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith(_ROOT + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


__path__ = []
_ROOT = __name__
sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    return _attribute(_ROOT, name)
'''


def main() -> None:
    """Imports what a server imports, and stubs the next missing package until nothing is missing."""
    site = Path(sys.argv[1])
    for _ in range(25):
        code = "import " + ", ".join(IMPORTS)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode == 0:
            return
        missing = re.findall(r"No module named '([\w.]+)'", done.stderr)
        if not missing:
            raise SystemExit(done.stderr[-1500:])
        package = missing[-1].split(".")[0]
        print("stub", package, flush=True)
        (site / package).mkdir(exist_ok=True)
        (site / package / "__init__.py").write_text(STUB)


if __name__ == "__main__":
    main()
