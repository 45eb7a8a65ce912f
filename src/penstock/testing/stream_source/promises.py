"""The promises: what each says, what Spark does to a source that breaks it, and how the kit tries it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """One promise of a streaming source.

    Attributes:
        name: Short, for reports and for `pytest -k`.
        text: The promise.
        consequence: How a query fails in production if it is not held.
        how: How the kit tries it.
    """

    name: str
    text: str
    consequence: str
    how: str


PICKLING = Promise(
    "pickles",
    "The data source, its reader and its partitions survive pickling.",
    "It pickles all three to move them between the driver's Python processes and the executors; the query fails before its first row.",
    "Pickles each with Spark's serializer, the reader also after a batch was planned.",
)
JSON = Promise(
    "offsets are JSON",
    "An offset is a dictionary that JSON returns unchanged.",
    "It keeps the JSON text, and a restart passes that: a tuple returns as a list, a numeric key as text, a date not at all.",
    "Sends each offset through JSON and compares.",
)
INITIAL = Promise(
    "same initial offset",
    "`initialOffset` returns the same offset in every process, whenever it is called.",
    "It does not log this offset. It calls `initialOffset` again when batch 0 is repeated, and that batch then has other rows.",
    "Calls it before records are put, after, and in a second reader.",
)
REST = Promise(
    "no news, no offset",
    "Without new records `latestOffset` returns the start of the batch, as the same JSON text.",
    "It compares the texts. Another text is a new batch: an idle query runs empty batches without pause and fills its checkpoint location.",
    "Reads everything, then asks again several times.",
)
MONOTONE = Promise(
    "offsets move forward",
    "`latestOffset` never returns an offset that the query has already left, also after a restart.",
    "It logs the offset and reads backwards: rows are repeated, or a negative range fails.",
    "Runs three batches, restarts with their log, and compares each new offset with the former ones.",
)
ONCE = Promise(
    "every record once",
    "The batches of a query hold every record once.",
    "It has no other copy of a record: one that no batch holds is lost, one that two batches hold is counted twice.",
    "Puts records in rounds of several sizes, reads them to the end, and compares the ids.",
)
REPLAY = Promise(
    "identical replay",
    "A batch that is read again has the same rows, with the same values.",
    "It repeats a batch after every failure, under the same batch id. A sink that knows the id keeps the first rows or the last "
    "ones; rows that differ are lost or doubled.",
    "Reads a batch three times: in part, whole, and whole again after more records were put.",
)
RESTART = Promise(
    "restart at every call",
    "A query that dies after any call goes on in a new process from the offset log alone.",
    "It starts a new process that has only the options and the logged offsets, not the memory of the reader.",
    "Kills the reader after each call in turn, puts records while it is down, and compares the ids at the end.",
)
EMPTY = Promise(
    "empty range",
    "`partitions(x, x)` has no rows and changes nothing.",
    "It calls this for a batch without news from this source, and Spark 4.0 and 4.1 at each restart: rows are repeated, or the restart fails.",
    "Calls it in a running and in a new reader, reads what it returns, then reads the next batch.",
)
LIMIT = Promise(
    "read limits",
    "A batch has at most as many rows as the limit allows, and with `ReadAllAvailable` all rows there are.",
    "The limit protects the cluster: a backlog in one batch exhausts memory. `trigger(once=True)` lifts it, and a source that "
    "keeps it leaves rows behind.",
    "Limits a batch by the source's option, puts three times as many records, then lifts the limit.",
)
AVAILABLE_NOW = Promise(
    "availableNow ends",
    "After `prepareForTriggerAvailableNow` the source offers the records up to then, in any number of batches, and then no more.",
    "It asks until nothing is left: with a target that moves, the nightly job never ends; with one that is missed, rows wait for the next night.",
    "Prepares, puts records after each batch, and counts the calls until the source is at rest; then restarts once.",
)
STOP = Promise(
    "stop leaves nothing",
    "`stop` ends the threads and connections of its reader, after whichever call it comes.",
    "It keeps the process for other queries: threads and connections add up with each restart until the driver host has none left.",
    "Stops three readers after each call, in a process of its own, and looks for threads and sockets that grow with each.",
)
SPECULATION = Promise(
    "speculation",
    "Two attempts that read one partition at the same time return the same rows, or one of them fails.",
    "With `spark.speculation`, and when an executor was lost only for the driver, it takes the attempt that ends first.",
    "Begins an attempt, puts records, reads the partition in a second attempt, and ends the first.",
)
TWO_DRIVERS = Promise(
    "two drivers",
    "While an old driver of the query still runs, the new one reads the logged batches and goes on; nothing that the old one does harms it.",
    "A cluster manager starts a new driver before the old one is dead, and only the offset log separates them.",
    "Starts a second reader from the log, lets both read the batch, then stops the old one and goes on with the new one.",
)
COMMIT = Promise(
    "commit is advice",
    "`commit` may be called again for the same offset, or not at all.",
    "It calls `commit` with the batch that follows: a query that dies in between never does, or does again after the restart.",
    "Runs a query without `commit`, and one with each call made twice and again after a restart.",
)
OPTIONS = Promise(
    "wrong options",
    "A wrong option is refused before the first batch, by an error with its name or value.",
    "It has logged the batch when tasks begin: each restart repeats that failure, and the error arrives from an executor.",
    "Starts a query with each wrong option, to its first `latestOffset`.",
)
ANY_PROCESS = Promise(
    "any process",
    "A partition can be read in a process that has nothing but the pickled data source and the partition.",
    "A task runs on another machine: a module's variable that the driver has set is empty there, and rows are missing.",
    "Reads a batch here and in a new process.",
)
PROMISES: tuple[Promise, ...] = (
    PICKLING,
    JSON,
    OPTIONS,
    INITIAL,
    REST,
    MONOTONE,
    ONCE,
    REPLAY,
    RESTART,
    EMPTY,
    LIMIT,
    AVAILABLE_NOW,
    STOP,
    SPECULATION,
    TWO_DRIVERS,
    COMMIT,
    ANY_PROCESS,
)
"""The promises in the order of trial: if a source breaks an early one, later ones can often not be tried."""
PROMISE_NAMES: tuple[str, ...] = tuple(each.name for each in PROMISES)
