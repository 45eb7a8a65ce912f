"""Targets of a delivery: plain files, Delta Lake, Apache Iceberg, another stream; one file for each."""
