"""The executors' side of a streaming query: read the shards of a task, and claim the end of the batch in each."""
