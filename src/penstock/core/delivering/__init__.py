"""Decisions of a delivery of a stream into a table: its definition, its checks, names of files, columns of JSON records."""
