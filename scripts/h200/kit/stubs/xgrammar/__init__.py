"""Stand-in for xgrammar, left out of the kit (38 MB). Types are empty pydantic models; a call raises.

Serve with --grammar-backend none.
"""

import importlib.abc
import importlib.machinery
import sys
import types

import pydantic

__path__ = []


def _make(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name[0].isupper():
        return type(name, (pydantic.BaseModel,), {"model_config": pydantic.ConfigDict(extra="allow")})

    def left_out(*args, **kwargs):
        raise RuntimeError(f"xgrammar.{name}: xgrammar was left out of the kit")

    return left_out


class _Module(types.ModuleType):
    def __getattr__(self, name):
        return _make(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.startswith("xgrammar.")
            else None
        )

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, _Finder())
__getattr__ = _make
