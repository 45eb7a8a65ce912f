"""The sink: rows to records, dead letters, and the report of written records."""
