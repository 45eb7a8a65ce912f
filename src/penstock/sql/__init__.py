"""Streams as tables of DuckDB: a SELECT over the records of a time range. Needs the extra `sql`."""
