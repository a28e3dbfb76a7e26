"""The families of kernels: every module or package here that holds a `FAMILY`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from flashladder.ladder.family import LOADED

for _module in iter_modules(__path__):
    _found: object
    try:
        _found = import_module(f"{__name__}.{_module.name}").FAMILY
    except (Exception, SystemExit) as _error:  # noqa: BLE001  # `families()` raises it
        _found = _error
    LOADED[f"flashladder/ladder/families/{_module.name}"] = _found
