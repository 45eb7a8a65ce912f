"""Amazon Kinesis Data Streams for Python and PySpark."""

__version__ = "0.1.0"
