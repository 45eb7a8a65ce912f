"""The operations of Kinesis: one function each, found by name in `dispatch.OPERATIONS`."""
