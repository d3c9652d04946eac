"""CPU only: an empty torchvision for SGLang, in every process that has this folder on PYTHONPATH.

SGLang imports torchvision for its image models whatever it serves, and PyPI's does not load beside the CPU build of
torch. Nothing of it is ever called for a text model: a call raises. transformers and torch, which ask whether it is
there, are told that it is not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

NAME = "torchvision"
BLIND = ("transformers", "torch")


class Absent:
    """Stands for any name; a call of it raises."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *_args, **_kwargs):
        raise RuntimeError(f"{self.__name__} was called: there is no torchvision in this CPU setting")


class AbsentModule(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, _path=None, _target=None):
        if name.partition(".")[0] != NAME or asked_by(BLIND):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


def asked_by(packages):
    """Whether the code that wants to import belongs to one of some packages."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in (
            "importlib",
            "_frozen_importlib",
            "_frozen_importlib_external",
            "sitecustomize",
        ):
            return name.partition(".")[0] in packages
        frame = frame.f_back
    return False


sys.meta_path.insert(0, Finder())
