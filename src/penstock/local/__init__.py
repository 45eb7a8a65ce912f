"""The former place of the embedded Kinesis, for one release: import `penstock_local` (`pip install 'penstock[local]'`)."""

from __future__ import annotations

import warnings

try:
    from penstock_local import (
        Calls,
        Fault,
        FaultKeywords,
        Handle,
        LocalKeywords,
        LocalKinesis,
        LocalKinesisProcess,
        LocalOptions,
    )
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "the embedded Kinesis is not installed: pip install 'penstock[local]', then import penstock_local",
        name=missing.name,
    ) from missing

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

warnings.warn(
    "penstock.local is penstock_local now, and goes away with the next release: "
    "write `from penstock_local import LocalKinesis`",
    DeprecationWarning,
    stacklevel=2,
)
