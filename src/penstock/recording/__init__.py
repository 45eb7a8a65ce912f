"""Recordings: a slice of a stream in one Parquet file, to be read, queried and replayed. Needs pyarrow.

::

    recording = open_recording("incident.penstock")
    for batch in recording.batches(columns=["partitionKey", "data"]):
        ...

docs/recording-format.md describes the file.
"""

from penstock.recording.reader import Recording, open_recording

__all__ = ["Recording", "open_recording"]
