"""The errors of the embedded server.

::

    LocalError
    ├── OptionError    an option, a fault or a control request is wrong: change the call
    └── Unavailable    the server does not run, did not start or did not stop in time

The server's answers to clients are those of the service; an SDK raises its own errors for them.
"""

from __future__ import annotations


class LocalError(Exception):
    """The base class of every error that the embedded server raises on purpose."""


class OptionError(LocalError, ValueError):
    """An option, a fault or a control request has a value that cannot be used."""


class Unavailable(LocalError):
    """The server does not run, or did not start or stop in time."""
