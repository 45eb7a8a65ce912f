"""Measures, plans and keeps the size of a stream. The decisions are in `penstock.core.sizing`."""
