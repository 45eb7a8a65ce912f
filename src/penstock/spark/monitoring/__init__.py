"""The progress of a session's Kinesis queries, for programs, listeners and notebooks."""
