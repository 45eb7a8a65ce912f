"""The SDK's descriptions of services and endpoints, read faster than the SDK reads them.

botocore looks through the folders of all its 400 services before it opens a client of one, and parses with Python's `json`. That is
half of a client's cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import botocore.loaders
import msgspec
from botocore.exceptions import DataNotFoundError


class _MsgspecFileLoader(botocore.loaders.JSONFileLoader):
    """Reads a file with msgspec."""

    def _load_file(self, full_path: str, open_method: Callable[..., Any]) -> Any:
        if not os.path.isfile(full_path):  # noqa: PTH113 - a text, as the SDK has it
            return None
        with open_method(full_path, "rb") as file:
            return msgspec.json.decode(file.read())


class DescriptionLoader(botocore.loaders.Loader):
    """Reads descriptions, each once.

    Args:
        further_folders: Paths as `AWS_DATA_PATH` has them; None: no further folders.
    """

    FILE_LOADER_CLASS = _MsgspecFileLoader

    def __init__(self, further_folders: str | None) -> None:
        folders = further_folders.split(os.pathsep) if further_folders else []
        super().__init__(
            extra_search_paths=[os.path.expanduser(os.path.expandvars(each)) for each in folders]  # noqa: PTH111 - as the SDK does
        )

    def list_available_services(self, type_name: str) -> Any:
        """Return a collection that checks for one service, and lists all only on iteration."""
        return _ServiceNames(self, type_name, super().list_available_services)


class _ServiceNames:
    """The services that have a description of one type."""

    def __init__(
        self, loader: DescriptionLoader, type_name: str, list_all: Callable[[str], list[str]]
    ) -> None:
        self._loader = loader
        self._type_name = type_name
        self._list_all = list_all

    def __contains__(self, service: str) -> bool:
        try:
            self._loader.determine_latest_version(service, self._type_name)
        except DataNotFoundError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._list_all(self._type_name))
