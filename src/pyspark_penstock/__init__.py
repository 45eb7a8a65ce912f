"""Spark looks here for data sources: see `penstock.spark`."""
