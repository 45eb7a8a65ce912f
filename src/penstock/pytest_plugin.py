"""Fixtures for people who test against the embedded Kinesis."""
