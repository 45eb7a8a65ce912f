"""The options of source, batch reader and sink, parsed once. Does not import pyspark."""
