"""Reading one shard: its resumption, its next request, and the delivery of records to user code."""
