"""Several streams in one query: a planner for each stream, one lease table, one offset."""
