"""The size of a stream: its load by hash key, the next split or merge, and the cost of each choice."""
