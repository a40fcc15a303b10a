"""Lets SGLang's server start where its GPU kernels cannot be had; Python runs this file at start,
from PYTHONPATH.

SGLang imports names of `sgl_kernel` and `torchvision` on its way up, also on a CPU, where it then
computes with torch alone. For these two packages, where they are not installed, any name can be
imported. Calling one raises NotImplementedError: nothing is computed here, so nothing can be
computed wrongly.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGES = ("sgl_kernel", "torchvision")


class _AbsentClass(type):
    """For names with a capital: they are subclassed, and read as enumerations
    (`InterpolationMode.BICUBIC`)."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):  # a protocol that Python or a library looks for: there is none
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"

    def __call__(cls, *_args: object, **_options: object) -> object:
        raise NotImplementedError(f"{cls.__module__}.{cls.__name__} is not installed")


class _Absent:
    """For other names: functions, and objects with attributes (`scalar_types.uint4b8`)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *_args: object, **_options: object) -> object:
        raise NotImplementedError(f"{self._name} is not installed")


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return _AbsentClass(name, (), {"__module__": self.__name__})
        return _Absent(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = fullname.partition(".")[0] in _PACKAGES
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__version__"] = "0"  # transformers asks for it, and parses it


sys.meta_path.append(_Finder())  # last: what is installed is found before
