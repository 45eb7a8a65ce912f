"""The table of prices: the package's own, or a file."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

from penstock.core.sizing.prices import Prices, parse_prices
from penstock.errors import OptionError


def own_price_text() -> str:
    """Return the text of the package's own table."""
    return (files("penstock.sizing") / "prices.toml").read_text(encoding="utf-8")


def load_prices(path: str | None = None) -> Prices:
    """Return the prices of a TOML or JSON file, or the package's own.

    Raises:
        OptionError: The file cannot be read, or is not a table of prices.
    """
    if path is None:
        return parse_prices(tomllib.loads(own_price_text()), "prices.toml")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        document = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise OptionError(f"prices {path}: {error}") from error
    if not isinstance(document, dict):
        raise OptionError(f"prices {path}: expected names and prices")
    return parse_prices(document, f"prices {path}")
