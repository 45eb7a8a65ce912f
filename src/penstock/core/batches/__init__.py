"""Micro-batches of a Spark query: which shards, which range of each, and how the range becomes durable."""
