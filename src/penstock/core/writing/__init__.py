"""Writing to a stream: packing, batching, order per shard and flow control."""
