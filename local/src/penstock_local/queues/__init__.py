"""Kinesis queues: the delivery state of each record, the queues of a store, and receives that wait."""
