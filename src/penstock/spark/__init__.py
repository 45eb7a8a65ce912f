"""Spark source, sink and batch: the only package that knows pyspark and pyarrow."""
