"""The formatter with which a program's log is one JSON document to a line."""

from penstock.runtime.json_log import JsonFormatter

__all__ = ["JsonFormatter"]


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
