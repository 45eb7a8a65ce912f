"""Public names that are loaded on first use: importing a package costs only what a program uses of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def loaded_on_use(
    module: str, homes: Mapping[str, str], public: Collection[str], extras: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        homes: The names in each module, separated by spaces; a module that begins with a point is in this package.
        public: The names that `dir` shows.
        extras: For each optional package that the modules need: the argument of `pip install` that installs it.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home_of[name], module), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in extras:
                raise
            raise ModuleNotFoundError(
                f"{module}.{name} needs the package {package}, which is not installed: pip install {extras[package]}",
                name=error.name,
            ) from error

    return load, lambda: sorted(public)
