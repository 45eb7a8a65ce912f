"""Shared parts of all shells: event loops and their threads, the lease loop, the clock, metrics and an in-memory lease table."""
