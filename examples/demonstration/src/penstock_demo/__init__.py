"""The main job: real events through Kinesis and Spark, with a reshard and kills, and a proof at the end.

`demo` is the whole of it; `dataset` gives the flights, `publish` writes them, `query` is the Spark program (a process of its own,
run by `supervisor`), `averages` reads the second stream, to which the query writes, `verify` compares the output with
the input, `display` shows it.
"""
