"""A source that keeps every promise of the kit, and one for each promise that breaks it."""

from __future__ import annotations

import itertools
import threading
import uuid
from pathlib import Path

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from penstock.testing import SourceUnderTest

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # Spark 4.0 and 4.1

    class SupportsTriggerAvailableNow:
        pass


KNOWN = {"path", "maxrows", "parts"}


class Range(InputPartition):
    def __init__(self, begin, end):
        self.begin, self.end = begin, end


class LinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the lines of a file; an offset is the number of lines before it."""

    def __init__(self, path, limit):
        self.path, self.limit, self.target = path, limit, None
        self.before = 0  # for a Spark that passes no start

    def lines(self):
        return self.path.read_text().splitlines()

    def initialOffset(self):  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self):  # noqa: N802
        return ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self):  # noqa: N802
        self.target = len(self.lines())

    def latestOffset(self, start=None, limit=None):  # noqa: N802
        begin = self.before if start is None else start["at"]
        end = len(self.lines()) if self.target is None else min(self.target, len(self.lines()))
        rows = self.limit if limit is None else getattr(limit, "max_rows", 2**31)
        self.before = max(begin, min(end, begin + rows))
        return {"at": self.before}

    def partitions(self, start, end):
        if self.before == 0:
            self.before = end["at"]
        middle = (start["at"] + end["at"] + 1) // 2
        cuts = [start["at"], middle, end["at"]]
        return [Range(begin, until) for begin, until in itertools.pairwise(cuts) if until > begin]

    def read(self, partition):
        for number, line in enumerate(self.lines()[partition.begin : partition.end]):
            yield (line, partition.begin + number)


class LinesSource(DataSource):
    reader_class = LinesReader

    @classmethod
    def name(cls):
        return "lines"

    def schema(self):
        return "line string, number bigint"

    def streamReader(self, schema):  # noqa: N802
        unknown = {name.lower() for name in self.options} - KNOWN
        if unknown:
            raise ValueError(f"unknown options {sorted(unknown)}")
        return self.reader_class(Path(self.options["path"]), int(self.options.get("maxRows", 2**31)))


class SimpleLinesReader(SimpleDataSourceStreamReader):
    """The same, without partitions: it returns the rows with their offset."""

    def __init__(self, path):
        self.path = path

    def initialOffset(self):  # noqa: N802
        return {"at": 0}

    def read(self, start):
        lines = self.path.read_text().splitlines()
        return self.readBetweenOffsets(start, {"at": len(lines)}), {"at": len(lines)}

    def readBetweenOffsets(self, start, end):  # noqa: N802
        lines = self.path.read_text().splitlines()[start["at"] : end["at"]]
        return iter([(line, start["at"] + number) for number, line in enumerate(lines)])


class SimpleLinesSource(DataSource):
    @classmethod
    def name(cls):
        return "simple_lines"

    def schema(self):
        return "line string, number bigint"

    def simpleStreamReader(self, schema):  # noqa: N802
        if "maxRow" in self.options:
            raise ValueError("maxRow is not an option")
        return SimpleLinesReader(Path(self.options["path"]))


# --- one for each promise -------------------------------------------------------------------------------------


class LockInPartition(LinesReader):
    def partitions(self, start, end):
        found = super().partitions(start, end)
        for each in found:
            each.lock = threading.Lock()
        return found


class TupleInOffset(LinesReader):
    def latestOffset(self, start=None, limit=None):  # noqa: N802
        return {**super().latestOffset(start, limit), "read": (1, 2)}

    def initialOffset(self):  # noqa: N802
        return {"at": 0, "read": (1, 2)}


class StartsNow(LinesReader):
    def initialOffset(self):  # noqa: N802
        return {"at": len(self.lines())}


class AlwaysNews(LinesReader):
    def latestOffset(self, start=None, limit=None):  # noqa: N802
        end = super().latestOffset(start, limit)
        # As a source that puts the time of the call into its offset; its target is the exception.
        return end if self.target is not None else {**end, "asked": uuid.uuid4().hex}


class GoesBack(LinesReader):
    def latestOffset(self, start=None, limit=None):  # noqa: N802
        begin = {"at": self.before} if start is None else start
        end = super().latestOffset(start, limit)
        return {"at": 0} if end == begin else end


class FirstPage(LinesReader):
    def read(self, partition):
        return itertools.islice(super().read(partition), 10)


class NoRows(LinesReader):
    def read(self, partition):
        return iter(())


class OtherValues(LinesReader):
    def read(self, partition):
        for line, _ in super().read(partition):
            yield (line, uuid.uuid4().int % 2**40)


class ForgetsWhileDown(LinesReader):
    """Its first look in a process skips the records that arrived while no reader ran."""

    is_first = True

    def latestOffset(self, start=None, limit=None):  # noqa: N802
        begin = self.before if start is None else start["at"]
        if self.is_first and begin and self.target is None:
            self.skipped = len(self.lines())
            self.is_first = False
            self.before = self.skipped
            return {"at": self.skipped, "skips": True} if self.skipped > begin else {"at": begin}
        self.is_first = False
        return super().latestOffset(start, limit)

    def partitions(self, start, end):
        return [] if "skips" in end else super().partitions(start, end)


class RepeatsTheLast(LinesReader):
    def partitions(self, start, end):
        if start == end:
            return [Range(start["at"] - 1, end["at"])]
        return super().partitions(start, end)


class NoLimit(LinesReader):
    def __init__(self, path, limit):
        del limit
        super().__init__(path, 2**31)


class NoTarget(LinesReader):
    def prepareForTriggerAvailableNow(self):  # noqa: N802
        pass


LEFT = threading.Event()
"""Set to end the threads that `LeavesAThread` leaves in this process."""


class LeavesAThread(LinesReader):
    def latestOffset(self, start=None, limit=None):  # noqa: N802
        threading.Thread(target=LEFT.wait, args=(60,), name="poller", daemon=True).start()
        return super().latestOffset(start, limit)


class OneAttemptAtATime(LinesReader):
    """A partition that is being read looks read to the other attempt."""

    def read(self, partition):
        mark = self.path.with_suffix(f".{partition.begin}")
        if mark.exists():
            return
        mark.touch()
        try:
            yield from super().read(partition)
        finally:
            mark.unlink()


class SharedSession(LinesReader):
    """All readers share a session on the server, and `stop` ends it."""

    def __init__(self, path, limit):
        super().__init__(path, limit)
        self.session = path.with_suffix(".session")
        self.session.touch()

    def latestOffset(self, start=None, limit=None):  # noqa: N802
        if not self.session.exists():
            raise ConnectionError("no session")
        return super().latestOffset(start, limit)

    def stop(self):
        self.session.unlink(missing_ok=True)


class CommitOnce(LinesReader):
    done = -1

    def commit(self, end):
        if end["at"] <= self.done:
            raise ValueError(f"{end} is committed")
        self.done = end["at"]


class TakesAnyOption(LinesSource):
    def streamReader(self, schema):  # noqa: N802
        return self.reader_class(Path(self.options["path"]), int(self.options.get("maxRows", 2**31)))


LINES = {}


class LinesOfTheDriver(LinesReader):
    def partitions(self, start, end):
        LINES[self.path] = self.lines()
        return super().partitions(start, end)

    def read(self, partition):
        for number in range(partition.begin, partition.end):
            if self.path in LINES:
                yield (LINES[self.path][number], number)


BREAKS = {
    "pickles": LockInPartition,
    "offsets are JSON": TupleInOffset,
    "same initial offset": StartsNow,
    "no news, no offset": AlwaysNews,
    "offsets move forward": GoesBack,
    "every record once": FirstPage,
    "identical replay": OtherValues,
    "restart at every call": ForgetsWhileDown,
    "empty range": RepeatsTheLast,
    "read limits": NoLimit,
    "availableNow ends": NoTarget,
    "stop leaves nothing": LeavesAThread,
    "speculation": OneAttemptAtATime,
    "two drivers": SharedSession,
    "commit is advice": CommitOnce,
    "wrong options": TakesAnyOption,
    "any process": LinesOfTheDriver,
}


def broken_source(promise):
    """Return the data source that breaks a promise."""
    found = BREAKS[promise]
    return found if issubclass(found, DataSource) else source_of(found)


def source_of(reader):
    """Return the data source with a reader, by which another process finds it."""
    return SOURCES[reader]


SOURCES = {
    reader: type(f"{reader.__name__}Source", (LinesSource,), {"reader_class": reader, "__module__": __name__})
    for reader in (NoRows, *BREAKS.values())
    if issubclass(reader, LinesReader)
}
globals().update({each.__name__: each for each in SOURCES.values()})


class Lines(SourceUnderTest):
    """A file of its own."""

    visible_s = 5
    stop_s = 1
    wrong_options = {"maxRow": "3"}  # noqa: RUF012

    def __init__(self, folder, data_source=LinesSource):
        self.data_source = data_source
        self.path = folder / f"{uuid.uuid4().hex}.lines"
        self.path.touch()
        self.count = 0

    def options(self):
        return {"path": str(self.path)}

    def put(self, count):
        ids = [f"line {number}" for number in range(self.count, self.count + count)]
        self.count += count
        with self.path.open("a") as file:
            file.writelines(f"{each}\n" for each in ids)
        return ids

    def id_of(self, row):
        return row["line"]

    def limited(self, rows):
        return {"maxRows": str(rows)}
