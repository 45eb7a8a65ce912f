"""Leases: who reads which shard, and the writes by which workers agree on it."""
