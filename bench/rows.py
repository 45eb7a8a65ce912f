"""The rows of the table."""

from __future__ import annotations

from dataclasses import replace

from table import Aim, Contender, Row, Streams

AWSLABS_JARS = "PENSTOCK_BENCH_AWSLABS_JARS"
MIB = 2**20

# --- reading ----------------------------------------------------------------------------------------------------


def _decode(key: str, title: str, streams: Streams, aim: Aim, text: str) -> Row:
    peers = ("boto3", "pyarrow")
    last = (
        Contender(
            "boto3 + aws-kinesis-agg", ("decode", "aws-kinesis-agg"), {}, "boto3", (*peers, "aws-kinesis-agg")
        )
        if streams.per_aggregate
        else Contender("boto3", ("decode", "boto3"), {}, "boto3", peers)
    )
    cbor = Contender("cbor2", ("decode", "cbor2"), {}, "boto3", ("cbor2", "pyarrow"))
    return Row(
        key=key,
        title=title,
        figure="cpu_s_per_gb",
        contenders=(
            Contender("Penstock", ("decode", "penstock"), packages=("penstock", "pyarrow")),
            last,
            *(() if streams.per_aggregate else (cbor,)),
            Contender("one copy of the bytes", ("decode", "copy"), is_bound=True, packages=()),
        ),
        aims=(aim,),
        streams=streams,
        budget_s=10,
        is_quick=key == "decode-1k",
        has_input=True,
        takes_turn=False,
        text=text,
    )


DECODING = (
    _decode(
        "decode-100",
        "a GetRecords answer to Arrow columns, 100 B",
        Streams(1, 10_000, 100),
        Aim("cpu_s_per_gb", 20, "boto3", is_floor=True, inverse=True),
        "At this size it is the work per record that counts, not the bytes: 0.60 µs of CPU time, measured step by step. msgspec parses the "
        "JSON into structs in 0.26, of which 0.12 only find where the records and their fields end, which no reader of the JSON can go "
        "without. The fields are put into a list a column in 0.05, columns are made of the lists in 0.19, and Python frees its 40,000 "
        "objects a page in 0.10. So the aim leaves a few hundredths of a microsecond of room, and both sides of the ratio vary by more. "
        "Columns are made of buffers, which spares each Python process of Spark the half second and the 40 MB of pandas that `pyarrow.array` "
        "imports. A parser that writes Arrow columns directly, in C or Rust, would be next: it has no objects to make and to free.",
    ),
    _decode(
        "decode-1k",
        "a GetRecords answer to Arrow columns, 1 KiB",
        Streams(1, 10_000, 1024),
        Aim("cpu_s_per_gb", 8, "boto3", is_floor=True, inverse=True),
        "About half is base64, the rest the JSON's scan and the copies into Arrow's buffers.",
    ),
    _decode(
        "decode-25k",
        "a GetRecords answer to Arrow columns, 25 KiB",
        Streams(1, 400, 25 * 1024),
        Aim("cpu_s_per_gb", 3, "boto3", is_floor=True, inverse=True),
        "Base64 and one copy: both sides are close to memory bandwidth, so little can be won.",
    ),
    _decode(
        "decode-aggregated",
        "a GetRecords answer to Arrow columns, aggregates of 100 x 100 B",
        Streams(1, 20_000, 100, per_aggregate=100),
        Aim("cpu_s_per_gb", 2.5, "boto3 + aws-kinesis-agg", is_floor=True, inverse=True),
        "A quarter is the checksum and protobuf's parser, both in C. The rest takes each field out of protobuf's objects into a "
        "list per column, and makes Arrow columns of the lists; there is no Python object per user record of our own. What all "
        "records of an aggregate share is repeated by Arrow. A parser of the aggregate that writes Arrow columns directly, in C "
        "or Rust, would be next.",
    ),
)


_PLAIN_READERS = (
    Contender("boto3 in tasks", ("source", "boto3"), packages=("boto3", "pyspark")),
    Contender("the bytes alone", ("source", "wire"), is_bound=True, packages=()),
)


def _backlog(
    key: str, title: str, streams: Streams, *, has_peers: bool = False, is_quick: bool = False
) -> Row:
    data_bytes = streams.record_count * streams.data_bytes
    return Row(
        key=key,
        title=title,
        figure="wall_s",
        contenders=(
            Contender("Penstock", ("source", "penstock"), packages=("penstock", "pyspark", "pyarrow")),
            Contender("awslabs' connector", ("source", "awslabs"), needs=(AWSLABS_JARS, "jars")),
            *(_PLAIN_READERS if has_peers else ()),
        ),
        aims=(
            Aim("wall_s", 4, "awslabs' connector", is_floor=True, inverse=True),
            Aim("cpu_s_per_gb", 20),
            Aim("cpu_s_per_gb", 1, "awslabs' connector"),
            Aim("again_wall_s", 4, "awslabs' connector", is_floor=True, inverse=True),
            Aim("again_cpu_s_per_gb", 20),
            Aim("again_cpu_s_per_gb", 1, "awslabs' connector"),
            Aim("peak_mb", 1, "awslabs' connector"),
        ),
        options={"record_count": streams.record_count, "data_bytes": data_bytes},
        streams=streams,
        turns=1,
        budget_s=60 if has_peers else 30,
        is_quick=is_quick,
        text=(
            "A query's cost before its first record and per batch is the same at any size, so small backlogs cost more per GB. The "
            "difference of the rows of 100 and of 400 MB is the cost of 300 MB alone: the second time in a session 1.5 s and 2.3 CPU s, 8 per GB, where "
            "awslabs' connector takes 34 s and 5.1 CPU s, 17 per GB, and boto3 in tasks 4 s and 23 CPU s per GB. So the reading meets the aims "
            "twice over; the start of a query misses them, which the row of a query's start has alone: the second time in a session "
            "Penstock's takes 2.1 CPU s, 1.3 of them with a source in Python that has one row in memory. The first time it takes 6.3, 3.7 of "
            "them with that source: the JVM loads and compiles the classes of streams, and Spark starts four Python programs one after the other, each of which "
            "imports pyspark, and a daemon for the tasks. A program that registers the source spares nearly one of them. The programs and "
            "workers stay, with 700 MB between them at most beside the JVM (67 the program, 83 the planner, 90 the two that plan the tasks, 140 those that look the source "
            "up and create it, 60 the session's own daemon, 290 the workers and their daemon; `python bench/spark_memory.py` on a machine with fifteen times "
            "more work than cores). So a source in Python does not meet the aim of memory: the empty one of the row of a query's start has 1,012 MB at the peak, "
            "and awslabs' connector with this backlog 997. Per record it is decoding, the copy from the Python worker to the JVM through a socket, and Spark's copy from "
            "Arrow to rows. Compare with the row *bytes to Arrow*, and with the bytes alone: those are fetched over one "
            "connection by one process, without decoding. The server has no quotas here, so Penstock's source runs with "
            "`fetchInterval=0s`; by default it keeps to the service's 2 MiB per second and shard, as in the row with quotas."
        ),
    )


def _quotas(key: str, record_thousands: int) -> Row:
    record_count = 1000 * record_thousands
    return Row(
        key=key,
        title=f"Spark: {record_thousands} MB with the service's quotas on, 4 shards, `local[2]`",
        figure="quota_percent",
        contenders=(Contender("Penstock", ("source", "penstock"), packages=("penstock", "pyspark")),),
        aims=(Aim("quota_percent", 90, is_floor=True), Aim("again_quota_percent", 90, is_floor=True)),
        options={
            "record_count": record_count,
            "data_bytes": record_count * 1024,
            "quota_bytes_per_s": 4 * 2 * MIB,
        },
        streams=Streams(4, record_count, has_limits=True),
        turns=1,
        budget_s=30,
        text="The bound is the quota itself, 2 MiB/s for each shard. The query's own start counts, in which nothing may be read yet: the first "
        "time in a session Spark starts four Python programs and a daemon (the row of a query's start has them with an empty source). So the same reading is "
        "shown without it, from the start of the first batch to the end of the last one; and twice the backlog halves the start's share, "
        "since it costs the same at any size. The first start takes a third of the 9.8 s that "
        "the quota allows for 80 MB: on a machine half as fast it was 58 % of the quota, and 76 with 160 MB. The second time in a session both rows "
        "are above the aim on either. "
        "The JVM has run a stream before, as in a program that has run for a moment: the first stream of a JVM starts some seconds "
        "later, while Spark loads and compiles its classes. Two task slots read four shards at the same time, and the call after a page of 10 MB goes "
        "out as soon as its bytes are paid for (4.9 s). A shard gives up to 10 MB in a call and then refuses reads until the quota "
        "allows for them, so a short run may be above 100 %. Fetching the next batch's pages while Spark commits would win nothing here: a "
        "batch reads to the tip, and commits take 0.1 s.",
    )


BACKLOG = (
    _backlog(
        "backlog-100mb",
        "Spark: a backlog of 100 MB, 4 shards, 1 KiB",
        Streams(4, 100_000),
        has_peers=True,
        is_quick=True,
    ),
    _backlog(
        "backlog-400mb",
        "Spark: a backlog of 400 MB, 16 shards, 1 KiB",
        Streams(16, 400_000),
        has_peers=True,
    ),
    _backlog("backlog-270b", "Spark: a backlog of 54 MB, 4 shards, 270 B", Streams(4, 200_000, 270)),
    _backlog(
        "backlog-aggregated",
        "Spark: a backlog of 54 MB, 4 shards, aggregates of 100 x 270 B",
        Streams(4, 200_000, 270, per_aggregate=100),
    ),
    _quotas("quotas", 80),
    _quotas("quotas-160mb", 160),
)


def _latency(key: str, title: str, load: tuple[float, float, int], aims: tuple[Aim, ...]) -> Row:
    return Row(
        key=key,
        title=title,
        figure="median_s",
        contenders=(
            Contender("Penstock", ("latency", "penstock"), packages=("penstock", "pyspark")),
            Contender(
                "Penstock, Spark's daemon",
                ("latency", "penstock"),
                {"daemon": "pyspark.daemon"},
                packages=("penstock", "pyspark"),
            ),
            Contender("boto3, polling", ("latency", "boto3"), packages=("boto3",)),
        ),
        aims=aims,
        options={"load": list(load)},
        streams=Streams(2, has_limits=True, is_fresh=True),
        turns=1,
        budget_s=40,
        text="The floor is Spark's own micro-batch: it writes its offsets and commits to the checkpoint before and after each "
        "batch, plans the query and starts a task (see the row *empty query*). A record that arrives while a batch runs waits "
        "for its end. Each batch also claims its ends in the lease table. The slowest records wait for a probe: a shard "
        "that was just read is asked four times in the next second, and once a second after that (`probeInterval`), because all who read a "
        "shard share five reads a second, and a batch takes one of them. So up to a second of waiting is built in for a shard that has been "
        "quiet for more than one; a shorter `probeInterval` makes it shorter. These rows follow the speed of the machine more than others: a batch "
        "is work of the JVM, the planner and a worker one after the other, on cores that the server and the writer use as well. With the same code "
        "the medians have been 0.47 and 0.35 s, and the slowest 1.1 and 0.94, on a day on which the machine was half as fast. "
        "All rows with Spark have `spark.python.daemon.module` set to `penstock.spark.daemon`, as `penstock deliver` has; a session without it is the "
        "second contender here.",
    )


LATENCY = (
    _latency(
        "latency-20",
        "PutRecord to foreachBatch, 20 records/s",
        (20.0, 8.0, 2),
        (Aim("median_s", 0.35), Aim("p99_s", 1.0), Aim("after_idling_s", 1.0)),
    ),
    _latency(
        "latency-500",
        "PutRecord to foreachBatch, 500 records/s",
        (500.0, 8.0, 0),
        (Aim("median_s", 0.35), Aim("p99_s", 1.0)),
    ),
)


SHORTER_AIMS = (("median_s", 1), ("longest_s", 2))


def _idle(shards: int, limit_s: float) -> Row:
    shorter = "Penstock, probeInterval 300ms"
    return Row(
        key=f"idle-{shards}",
        title=f"one record on {shards:,} idle shards, a random one each time",
        figure="median_s",
        contenders=(
            Contender("Penstock", ("idle_shards", "penstock"), packages=("penstock", "pyspark")),
            Contender(
                shorter,
                ("idle_shards", "penstock"),
                {"probeInterval": "300ms"},
                packages=("penstock", "pyspark"),
            ),
            Contender("boto3, one after the other", ("idle_shards", "boto3"), packages=("boto3",)),
        ),
        aims=(
            Aim("median_s", limit_s),
            Aim("longest_s", 2 * limit_s),
            *(
                Aim(name, factor * limit_s, contender=shorter)
                for name, factor in SHORTER_AIMS
                if shards <= 100
            ),
        ),
        streams=Streams(shards, has_limits=True),
        turns=1,
        budget_s=25,
        text="The driver asks every idle shard at most once a second (`probeInterval`), because all who poll a shard share five reads "
        "a second: half a second of waiting is built in, up to a second at worst, and the rest is a batch. A shorter interval makes the wait shorter: in virtual time "
        "a record on 20 shards that are idle for ten seconds on average takes 0.89 s in the median and 1.29 s at worst with `probeInterval` 1s, and 0.45 and 0.84 s with 300ms, for 1.0 and 2.8 reads per shard and second "
        "(see [a rare record](costs.md#a-rare-record)). The default stays at 1s, since two readers with 300ms would use all reads of a shard. From 500 shards on "
        "300ms gains nothing on two cores: a round of probes takes longer than that. Only "
        "shards with news have a task, and a batch on more than 64 shards waits a fifth of a second for other answers. A probe costs 0.2 ms "
        "of CPU time, and the embedded server takes as much again on the same cores. "
        "So a round over 1,000 shards is 0.4 s of CPU time, with the batches, the renewals of 1,000 "
        "leases and Spark beside it. A record waits for half a round on average, then a fifth of a second for other answers, then for the batch, "
        "which takes the 0.3 s of the rows *PutRecord to foreachBatch*. The bound beside "
        "it is boto3's round, which asks one shard after the other and does nothing else. A server on cores of its own would be next: it halves the round.",
    )


IDLE = (_idle(20, 0.45), _idle(100, 0.45), _idle(500, 0.45), _idle(1000, 1.5))


def _planning(shards: int, limit_s: float | None, turns: int) -> Row:
    return Row(
        key=f"planning-{shards}",
        title=f"planning a batch over {shards:,} shards that are behind",
        figure="plan_s",
        contenders=(
            Contender("Penstock", ("planning", "penstock")),
            Contender("boto3, one scan", ("planning", "boto3"), packages=("boto3",), is_bound=True),
        ),
        aims=() if limit_s is None else (Aim("plan_s", limit_s),),
        streams=Streams(shards, 2 * shards, 100),
        turns=turns,
        budget_s=20,
        is_quick=shards == 100,
        text="One look at the lease table; then each shard's claim is settled and the offset is written as JSON. The scan alone, of "
        "the same table and with nothing planned, is measured in the same run and shown beside the plan: it is the least time of any "
        "plan. boto3's scan is of rows without a claim. Of 1,000 shards the planner's own thread takes 0.12 s of CPU time: 0.04 for "
        "the rows (botocore's parser would need 0.1 s more), 0.05 to settle the shards, and 0.03 for the offset's JSON and the tasks. "
        "The rest is moto, which has one thread and takes 0.13 s of CPU time to find, measure, copy and write a thousand rows with their claims, on "
        "the same cores as the planner, and answers the renewals of the thousand leases in between. The first three batches read the whole table, one page "
        "after the other; later ones read their rows by key, ten calls at once, which moto carries out one after the other. DynamoDB, "
        "which carries them out at the same time, would be next.",
    )


PLANNING = (_planning(10, None, 1), _planning(100, None, 2), _planning(1000, 0.3, 1))

# --- plain Python -----------------------------------------------------------------------------------------------


def _consumer(shards: int, record_count: int, *peers: Contender, is_quick: bool = False) -> Row:
    return Row(
        key=f"consumer-{shards}",
        title=f"consumer: {record_count:,} records of 200 B from {shards} shards",
        figure="cpu_s_per_million",
        contenders=(
            Contender("Penstock", ("consumer", "penstock")),
            Contender("boto3 in a loop", ("consumer", "boto3"), packages=("boto3",)),
            *peers,
        ),
        aims=(Aim("cpu_s_per_million", 5, "boto3 in a loop", is_floor=True, inverse=True),),
        options={"record_count": record_count},
        streams=Streams(shards, record_count, 200),
        budget_s=45,
        is_quick=is_quick,
        text="The consumer does more than boto3's loop, which stores no position and shares its shards with no other worker: it makes "
        "a lease table, creates, takes, checkpoints and releases a lease for each shard, and hands records over between threads. The records "
        "alone meet the aim, the leases do not. Read with ten records a shard, 8 shards take 0.21 s of CPU time and 100 shards 1.1, boto3's loop 0.18 and 0.64; "
        "100,000 records take beyond that, measured in the same minutes, 4.1 µs a record from 8 shards and less from 100, a sixth "
        "of boto3's 26. With 100 shards of a thousand records each, nine tenths of the time are therefore the same without records: 11 ms a shard, for about nine calls "
        "where boto3's loop makes three. A repeated call costs a fifth of botocore's; the rest "
        "is mostly the hand-over between threads, the coordinator's rules, and polls of shards that are read to their end while others "
        "are not. Per record it is 0.7 µs of JSON and Base64, and less than 2 µs for its `Record`, for the count of its bytes while it "
        "waits, and for Python's collection of garbage. Leases taken by many shards in one call would be next, which DynamoDB has only "
        "as transactions, at twice the price. The KCL in Java is not in the table: it is no single package, and `make test-interop` builds it for the tests of "
        "interoperation.",
    )


def _producer(record_count: int) -> Row:
    return Row(
        key="producer",
        title=f"producer: {record_count:,} records of 100 B to 4 shards",
        figure="cpu_s_per_million",
        contenders=(
            Contender("Penstock", ("producer", "penstock")),
            Contender("Penstock, aggregated", ("producer", "penstock-aggregated")),
            Contender("Penstock, unordered", ("producer", "penstock-unordered")),
            Contender("a Spark task's writer", ("producer", "task")),
            Contender("a Spark task's writer, aggregated", ("producer", "task-aggregated")),
            Contender("boto3 put_records", ("producer", "boto3"), packages=("boto3",)),
            Contender(
                "async-kinesis",
                ("producer", "async-kinesis"),
                environment="async-kinesis",
                packages=("async-kinesis",),
            ),
        ),
        aims=(Aim("cpu_s_per_million", 1, "boto3 put_records"), Aim("wall_s", 1, "boto3 put_records")),
        options={"record_count": record_count},
        streams=Streams(4, is_fresh=True),
        budget_s=45,
        is_quick=True,
        text="boto3's loop does not keep the order of a key when an entry is refused, gives no receipt and never waits for "
        "quotas. What that takes is 3 µs a record for a lock, the checks and the receipt, 4 µs for its shard, its place behind the "
        "records of its key, its entry and its answer, and 3 µs for Python's collection of garbage, which finds every record that "
        "waits. A call takes less for it: 3 µs a record with its signature, JSON and Base64, where boto3 takes 15, since botocore "
        "builds only the first PutRecords of a process and reads no answer.",
    )


_START_CONSUMER = Row(
    key="start-consumer",
    title="start: from a new process to the first record",
    figure="first_record_s",
    contenders=(
        Contender("Penstock", ("consumer", "penstock-again")),
        Contender("Penstock, the application's first start", ("consumer", "penstock-first")),
        Contender("boto3", ("consumer", "boto3-first"), packages=("boto3",)),
    ),
    aims=(Aim("first_record_s", 1.3, "boto3"),),
    streams=Streams(4, 4_000, 200),
    turns=5,
    budget_s=25,
    is_quick=True,
    text="To import Penstock's consumer takes 0.26 s of CPU time, to import boto3 0.22; botocore is 0.2 of both. The rest is calls that "
    "wait for each other. boto3's loop makes six of them: the shards, four iterators, a page. An application that has run before makes six, too: "
    "the stream's summary and the description of the lease table at the same time, a scan of it, a row, its lease, an iterator, a page. Its very first start "
    "makes thirteen: it creates the table, looks at it twice (up to 40 ms apart with four shards, so that workers that start together do not "
    "all list the shards), lists the shards and creates their leases. The clients cost half as much as in boto3: the "
    "descriptions of the two services are read without looking through those of all others. Nothing of asyncio or enhanced "
    "fan-out's HTTP/2 is loaded by a consumer that polls. The memory and the calls of *Penstock* are those of both starts.",
)


PYTHON = (
    _consumer(
        8,
        100_000,
        Contender(
            "async-kinesis",
            ("consumer", "async-kinesis"),
            environment="async-kinesis",
            packages=("async-kinesis",),
        ),
        is_quick=True,
    ),
    _consumer(100, 100_000),
    _producer(40_000),
    Row(
        key="write-quotas",
        title="four writers near the quota: 96,000 records of 300 B to 12 shards, quotas on",
        figure="quota_percent",
        contenders=(
            Contender("a Spark task's writer", ("writers", "task")),
            Contender("boto3 put_records", ("writers", "boto3"), packages=("boto3",)),
        ),
        aims=(
            Aim("quota_percent", 90, is_floor=True),
            Aim("wall_s", 1.1, "boto3 put_records"),
            Aim("requests", 1.1, "boto3 put_records"),
            Aim("slowest_by_fastest", 1.2),
        ),
        options={"record_count": 96_000, "shard_count": 12},
        streams=Streams(12, has_limits=True, is_fresh=True),
        turns=1,
        budget_s=60,
        text="The bound is the quota, 1,000 records per second for each shard, of which a shard accepts one second's worth at once at the "
        "beginning. Each process writes to all shards and does not see the others. A slow or busy machine measures its cores instead. In virtual "
        "time (`python bench/quota_writers.py`) four tasks write 200,000 records to 24 shards at 98 to 99 % of the quota, at 5 and at 25 ms "
        "a call, with 1.04 to 1.07 between the slowest and the fastest task and 570 to 620 calls of PutRecords, since a third of the records are "
        "refused at first; 400 calls would be full. boto3's loop has 109 % there and 410 to 440 calls, because its pause of a tenth of a second is by chance that of four "
        "writers to 24 shards. With six shards it makes 230 to 290 calls, the tasks 180; with twelve tasks 810 to 940, the tasks 750 to 780.",
    ),
    Row(
        key="sink",
        title="Spark sink: 40,000 records of 1 KiB to 4 shards",
        figure="wall_s",
        contenders=(
            Contender("Penstock", ("sink", "penstock"), packages=("penstock", "pyspark")),
            Contender(
                "Penstock, aggregated", ("sink", "penstock-aggregated"), packages=("penstock", "pyspark")
            ),
            Contender(
                "Penstock, registered", ("sink", "penstock-registered"), packages=("penstock", "pyspark")
            ),
            Contender("boto3 in foreachPartition", ("sink", "boto3"), packages=("boto3", "pyspark")),
            Contender("an empty sink", ("sink", "empty-sink"), packages=("pyspark",), is_bound=True),
            Contender("rows to Python, no more", ("sink", "nothing"), packages=("pyspark",), is_bound=True),
        ),
        aims=(
            Aim("wall_s", 1, "boto3 in foreachPartition"),
            Aim("cpu_s", 1, "boto3 in foreachPartition"),
            Aim("again_wall_s", 1, "boto3 in foreachPartition"),
            Aim("again_cpu_s", 1, "boto3 in foreachPartition"),
        ),
        options={"record_count": 40_000},
        streams=Streams(4, is_fresh=True),
        budget_s=110,
        text="Spark makes the rows and hands them to Python, which the last contender does alone. *An empty sink* is a sink in Python "
        "that drops its rows: what Spark costs for any. The first time in a session that takes more CPU time than `foreachPartition` with "
        "boto3's calls among it (3.6 s and 3.2), so a sink in Python reaches the aim only if it does nothing. Before the first write of a session Spark starts a "
        "program that looks for sources (1.2 s of CPU time), one that creates the writer (1.4), and one that commits (1.1), one after the other and "
        "each with a daemon of its own; `foreachPartition` does without all three. Beyond the empty sink, Penstock has its tasks, which take "
        "0.8 s each where those of the empty sink take 0.4 and boto3's 1.3: signing, PutRecords, and the shard of each record. And it has a "
        "second daemon of workers, 1.5 s with Penstock's modules: Spark does not reuse the warm one, since it "
        "gives workers of a source that it has found by itself another environment; boto3's tasks have a second one, too (0.9 s). A program that "
        "registers the source spares that daemon. The next write of a session reuses the programs of the first, and meets the aims: it takes three quarters "
        "of the time and two thirds of the CPU time of boto3's.",
    ),
    Row(
        key="sink-quotas",
        title="Spark sink near the quota: 200,000 records of 300 B to 24 shards, 4 tasks, quotas on",
        figure="again_quota_percent",
        contenders=(
            Contender("Penstock", ("sink", "penstock-quota"), packages=("penstock", "pyspark")),
            Contender("boto3 in foreachPartition", ("sink", "boto3-quota"), packages=("boto3", "pyspark")),
        ),
        aims=(
            Aim("again_quota_percent", 90, is_floor=True),
            Aim("again_wall_s", 1.1, "boto3 in foreachPartition"),
            Aim("put_calls", 1.1, "boto3 in foreachPartition"),
            Aim("again_slowest_by_fastest", 1.2),
        ),
        options={"record_count": 200_000, "shard_count": 24},
        streams=Streams(24, has_limits=True, is_fresh=True),
        turns=1,
        budget_s=90,
        text="The bound is the quota, 1,000 records per second for each shard, of which a shard accepts one second's worth at once at the "
        "beginning: so a write may be above 100 % of it. The calls are those of both writes of a session. For the tasks alone, in virtual time, see the "
        "row of four writers.",
    ),
    _START_CONSUMER,
    Row(
        key="start-query",
        title="start: from `readStream` to the first record of a query",
        figure="first_record_s",
        contenders=(
            Contender("Penstock", ("start", "penstock"), packages=("penstock", "pyspark")),
            Contender(
                "Penstock, registered", ("start", "penstock-registered"), packages=("penstock", "pyspark")
            ),
            Contender("awslabs' connector", ("start", "awslabs"), needs=(AWSLABS_JARS, "jars")),
            Contender("an empty query", ("start", "python-source"), packages=("pyspark",), is_bound=True),
        ),
        aims=(
            Aim("first_record_s", 1.3, "awslabs' connector"),
            Aim("again_first_record_s", 1.3, "awslabs' connector"),
        ),
        streams=Streams(4, 4_000, 200),
        budget_s=45,
        text="An empty query is a source in Python with one row in memory: what Spark costs by itself, which is four Python programs one "
        "after the other (the source is looked up, created, planned, and its tasks are planned), each of which imports pyspark, "
        "and a daemon for the tasks. Beyond it, Penstock's planner imports its modules and botocore, creates the lease "
        "table, looks at it twice with a short random wait between, so that drivers that start together do not all make the "
        "leases, and takes its leases in thirty calls; the daemon of the tasks imports Penstock's modules. A query "
        "that goes on from its checkpoint finds the leases at the first look and does not wait. A source that Spark finds by itself has a "
        "second daemon, and a program that looks for sources: a program that registers it starts earlier the first time, by half a second here and 3 s on a machine half as fast "
        "(`spark.dataSource.register`). The second time in a session the programs that look the source up and the daemons are there, for either.",
    ),
)

# --- servers and fleets -----------------------------------------------------------------------------------------

SERVERS = (
    Row(
        key="server",
        title="embedded server, records of 1 KiB",
        figure="get_records_mb_per_s",
        contenders=(
            Contender("Penstock", ("server", "penstock")),
            Contender("Penstock, HTTP/2", ("server", "penstock-http2")),
            Contender("Penstock, state folder", ("server", "penstock-state")),
            Contender("moto", ("server", "moto"), packages=("moto",)),
            Contender("kinesis-local 0.6.2", ("server", "kinesis-local"), packages=()),
        ),
        aims=(
            Aim("get_records_mb_per_s", 10, "moto", is_floor=True),
            Aim("put_records_mb_per_s", 10, "moto", is_floor=True),
            Aim("get_records_mb_per_s", 10, "kinesis-local 0.6.2", is_floor=True),
            Aim("put_records_mb_per_s", 10, "kinesis-local 0.6.2", is_floor=True),
        ),
        options={"seconds": 1.0},
        turns=2,
        budget_s=50,
        takes_turn=False,
        text="GetRecords sends text that was made when the record was put, so a page costs a join and a write to the socket: the "
        "client and the loopback take as much. PutRecords decodes base64 once, hashes the key and keeps both forms; beside moto that is "
        "between 8 and 15 times as much from run to run.",
    ),
)


def _joining(before: int, after: int, shards: int) -> Row:
    options = {"before": before, "after": after, "shard_count": shards}
    return Row(
        key=f"balance-{before}-{after}",
        title=f"balance: {before} to {after} workers on {shards} leases",
        figure="moves",
        contenders=(
            Contender("Penstock", ("balance", "join"), {**options, "policy": "even"}),
            Contender("the KCL 2.x's rule", ("balance", "join"), {**options, "policy": "kcl2"}),
        ),
        aims=(Aim("moves", shards - -(-shards * before // after)), Aim("rounds", 2)),
        turns=2,
        budget_s=12,
        is_quick=after == 10,
        text="Each lease moves at most once, to a worker below its share. A worker that joins looks at the table once, asks for "
        "its share, and is given each lease by its owner. Workers join within one round, and each waits one more before it asks for its share, since others may "
        "still join: so the last of nine, which joins at 0.9 rounds on average, asks at 1.9, and its hand-overs take the rest. With nine newcomers the aim "
        "leaves a tenth of a round for the hand-overs, which take a third: each owner finishes its batch and writes its checkpoint first.",
    )


FLEETS = (
    _joining(1, 2, 100),
    _joining(1, 10, 100),
    Row(
        key="fleet-units",
        title="DynamoDB units per hour, 100 workers and 1,000 leases at rest",
        figure="units_per_hour",
        contenders=(
            Contender("Penstock", ("balance", "fleet"), {"policy": "even"}),
            Contender("the KCL 2.x's rule", ("balance", "fleet"), {"policy": "kcl2"}),
        ),
        aims=(Aim("units_per_hour", 0.5, "the KCL 2.x's rule"),),
        options={"workers": 100, "leases": 1000, "scenario": "calm"},
        turns=1,
        budget_s=20,
        text="A lease is renewed every 3 s by one write, whatever the rule; the difference is in the reads. "
        "The aim cannot be met at that pace: 1,000 leases take 1,200,000 write units per hour, more than half of the KCL 2.x's "
        "total. "
        "[Fleets at size](fleet.md) has more scenarios.",
    ),
    Row(
        key="balance-plan",
        title="planning a round: 10,000 leases, 1,000 workers",
        figure="even_ms",
        contenders=(Contender("Penstock", ("balance", "plan")),),
        aims=(Aim("even_ms", 25), Aim("by_throughput_ms", 25), Aim("by_zone_ms", 25)),
        options={"leases": 10_000, "workers": 1_000},
        budget_s=12,
        text="Linear in the leases. Of 10,000, Python takes 1 ms of CPU time for a pass that only counts them by owner, and 2 to list and sort each owner's: "
        "the work of any plan. An even plan makes three passes, and then distributes the released leases; by throughput it makes four, with each "
        "lease's weight and each worker's load, and then moves 700 leases one by one, 6 µs each. A busy machine takes half as much again for the same work: least and most "
        "are beside the median.",
    ),
)


def _bill(shards: int, limit_usd: float) -> Row:
    busy, idle = {"per_s": 20.0}, {"per_s": 0.0}
    longer = {"trigger_s": 1.0, "option": ["leaseDuration=30s"]}
    return Row(
        key=f"bill-{shards}",
        title=f"the bill of a reader: {shards} shards, 20 records/s on random ones, in virtual time",
        figure="month_usd",
        contenders=(
            Contender("a query", ("reader_bill", "query"), busy),
            Contender("a query, trigger of 1 s", ("reader_bill", "query"), {**busy, "trigger_s": 1.0}),
            Contender(
                "a query, trigger of 1 s, leases of 30 s", ("reader_bill", "query"), {**busy, **longer}
            ),
            Contender(
                "a query, fan-out", ("reader_bill", "query"), {**busy, "option": ["consumerType=fan-out"]}
            ),
            Contender("a query, no records", ("reader_bill", "query"), idle),
            Contender("a consumer", ("reader_bill", "consumer"), busy),
            Contender("a consumer, no records", ("reader_bill", "consumer"), idle),
        ),
        aims=(
            Aim("month_usd", limit_usd),
            Aim("month_usd", limit_usd, contender="a query, trigger of 1 s, leases of 30 s"),
            Aim("reads_per_shard_and_s", 3, contender="a query, trigger of 1 s, leases of 30 s"),
        ),
        options={"shards": shards},
        turns=1,
        budget_s=30,
        takes_turn=False,
        text="Prices are those of us-east-1 in `penstock plan`'s table, which has their source and date: $0.625 a million lease writes, $0.125 a "
        "million reads, and with fan-out $0.015 an hour and shard. `GetRecords` is free, so the price without fan-out is that of the lease "
        "table. Each batch writes one claim for each shard that had records, after which no other execution can give it another end; a query without a "
        "trigger makes three batches a second, so it misses both aims: its claims alone are $16 a month with 4 shards. A trigger of one second with `leaseDuration` 30s "
        "meets the aims, for 0.3 s more from put to row. [Where the time and the money go](costs.md#where-the-time-and-the-money-go) has more shards and triggers.",
    )


_TAKE_OVER = Row(
    key="take-over",
    title="two consumers of 8 shards, one is killed or stops: until each of its shards has another owner",
    figure="longest_s",
    contenders=(
        Contender("killed (SIGKILL)", ("leaving", "killed")),
        Contender("stopped (SIGTERM)", ("leaving", "stopped")),
    ),
    aims=(Aim("longest_s", 11.5), Aim("longest_s", 1.0, contender="stopped (SIGTERM)")),
    options={"shards": 8},
    streams=Streams(8, has_limits=True, is_fresh=True),
    turns=1,
    budget_s=35,
    text="A worker that is killed renews no more, and its leases are free after the lease duration, 10 s by default. The other worker scans the "
    "table at the moment at which they expire. One that stops writes its checkpoints and hands its leases over; on a machine with fifteen times more work than cores that took 4.4 s. "
    "The lease table is read every 50 ms. [Fleets at size](fleet.md) has larger fleets.",
)

BILLS = (_bill(4, 12.0), _bill(16, 30.0))

NEAR = (*DECODING, *BACKLOG, *LATENCY, *IDLE, *PLANNING, *PYTHON, *SERVERS, *FLEETS, _TAKE_OVER, *BILLS)
DISTANCE_S = 0.02
AT_A_DISTANCE = (
    "backlog-100mb",
    "consumer-8",
    "write-quotas",
    "sink",
    "sink-quotas",
    "start-consumer",
    "start-query",
)
"""Rows that are measured at a distance too: each answer of the server arrives 20 ms later. Bounds and variants stay near."""


def _at_a_distance(row: Row) -> Row:
    assert row.streams is not None
    return replace(
        row,
        key=f"{row.key}-20ms",
        title=f"{row.title}, 20 ms from the service",
        streams=replace(row.streams, distance_s=DISTANCE_S),
        contenders=tuple(each for each in row.contenders if not each.is_bound and ", " not in each.name),
        budget_s=row.budget_s / 2,
        turns=1,
        is_quick=False,
    )


ROWS = (*NEAR, *(_at_a_distance(row) for row in NEAR if row.key in AT_A_DISTANCE))

NOT_MEASURED = {
    "consumer beside the KCL 3 in Java": "the KCL is no single package; `make test-interop` builds it, for its own tests",
    "producer beside the KPL": "its native process is in a Java package; `make test-interop` runs it",
    "balance beside Disney's Rust KCL": "its rules are no policy of the simulator",
    "balance 10 to 9 and 100 to 200 workers": "in [Fleets at size](fleet.md), with zones and rolling deployments",
    "planning over 10,000 shards": "moto's table takes minutes to make so many leases",
}
"""What one would look for in the table, and why it is not there."""
