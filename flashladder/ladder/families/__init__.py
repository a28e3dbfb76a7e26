"""The families of kernels: each module or package here holds a `FAMILY`, and is known by being here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from flashladder.ladder.family import register

for _module in iter_modules(__path__):
    register(import_module(f"{__name__}.{_module.name}").FAMILY)
