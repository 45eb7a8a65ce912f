"""The embedded Kinesis: one loopback endpoint with the true semantics, quotas and scripted faults.

Needs the `local` extra: `pip install penstock[local]`. The names are loaded when they are first used, so
that the command line can describe the server without the extra.

This package imports nothing of Penstock but `penstock.errors`, not even the limits of the service: the
rest is tested against the server, so it must not share the rest's mistakes. An import contract checks it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.local.faults import Fault
    from penstock.local.handle import Calls, Handle
    from penstock.local.keywords import FaultKeywords, LocalKeywords
    from penstock.local.server import LocalKinesis, LocalKinesisProcess, LocalOptions

__all__ = [
    "Calls",
    "Fault",
    "FaultKeywords",
    "Handle",
    "LocalKeywords",
    "LocalKinesis",
    "LocalKinesisProcess",
    "LocalOptions",
]

_MODULES = {
    "Calls": "handle",
    "Fault": "faults",
    "FaultKeywords": "keywords",
    "Handle": "handle",
    "LocalKeywords": "keywords",
    "LocalKinesis": "server",
    "LocalKinesisProcess": "server",
    "LocalOptions": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"penstock.local.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("httptools", "h2"):
            raise ModuleNotFoundError(
                "the embedded Kinesis needs packages that are not installed: pip install 'penstock[local]'",
                name=error.name,
            ) from error
        raise
