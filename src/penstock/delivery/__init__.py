"""Deliveries: a stream into a table by Spark, each record once, without a program."""
