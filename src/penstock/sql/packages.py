"""Imports the packages of the extra `sql`. Every module of this folder imports this one first."""

from __future__ import annotations

try:
    import duckdb
    import numpy as np  # noqa: F401 - Arrow columns are made with it
    import pyarrow as pa
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"`penstock sql` needs the package {missing.name}, which is not installed: pip install 'penstock[sql]'"
    ) from missing

__all__ = ["duckdb", "pa"]
