"""Imports pyarrow for recordings; without pyarrow the error shows how to install it."""

from __future__ import annotations

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "recordings need the package pyarrow, which is not installed: pip install 'penstock[arrow]'",
        name=missing.name,
    ) from missing

from penstock.arrow_table import SCHEMA

__all__ = ["SCHEMA", "pa", "pq"]
