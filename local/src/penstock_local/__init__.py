"""The embedded Kinesis: one loopback endpoint with the true semantics, quotas and scripted faults.

A distribution of its own, for programs in every language: `pip install penstock-local`. `penstock[local]` includes it.
The names are loaded when they are first used: importing the package alone costs nothing.

This package imports nothing of `penstock`, not even the limits of the service: the library is tested against the
server, so it must not share the library's mistakes. An import contract checks it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock_local._version import __version__ as __version__

if TYPE_CHECKING:
    from penstock_local.errors import LocalError, OptionError, Unavailable
    from penstock_local.faults import Fault
    from penstock_local.handle import Calls, Handle
    from penstock_local.keywords import FaultKeywords, LocalKeywords
    from penstock_local.server import LocalKinesis, LocalKinesisProcess, LocalOptions

__all__ = [
    "Calls",
    "Fault",
    "FaultKeywords",
    "Handle",
    "LocalError",
    "LocalKeywords",
    "LocalKinesis",
    "LocalKinesisProcess",
    "LocalOptions",
    "OptionError",
    "Unavailable",
]

_MODULES: Final = {
    "Calls": "handle",
    "Fault": "faults",
    "FaultKeywords": "keywords",
    "Handle": "handle",
    "LocalError": "errors",
    "LocalKeywords": "keywords",
    "LocalKinesis": "server",
    "LocalKinesisProcess": "server",
    "LocalOptions": "server",
    "OptionError": "errors",
    "Unavailable": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock_local.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
