"""A conformance kit for streaming sources in Python: it tries the promises on which Spark relies in a `DataSourceStreamReader`.

It makes Spark's calls without a JVM and imports nothing of the library, so it judges every source alike.
"""

from penstock.testing.stream_source.kit import StreamSourceChecks, Verdicts, check_stream_source
from penstock.testing.stream_source.outcomes import PromiseBroken
from penstock.testing.stream_source.session_run import StreamSourceSessionChecks
from penstock.testing.stream_source.source_under_test import SourceUnderTest

__all__ = [
    "PromiseBroken",
    "SourceUnderTest",
    "StreamSourceChecks",
    "StreamSourceSessionChecks",
    "Verdicts",
    "check_stream_source",
]
