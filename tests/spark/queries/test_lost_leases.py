"""Leases lost before or during a query: each record is read, and as few as possible are read twice.

The reader is driven without Spark, in the order of the calls of each of Spark's lines.
"""

from __future__ import annotations

import collections
import time
import uuid
from pathlib import Path

import pytest

from lease_hands import Hands
from penstock.aws.lease_table import DynamoLeaseTable
from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Delete
from penstock.core.position import at_record
from penstock.errors import AccessDenied, NotFound, OptionError, Rejected
from spark_support import numbered, put
from waiting import wait_until

QUERY_OPTIONS = {"leaseDuration": "2s"}
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture(params=[True, False], ids=["told starts", "not told starts"])
def nightly(request, query):
    """Make queries as Spark 4.2 calls them, and as 4.0 and 4.1 do."""
    return lambda **options: query(is_told_starts=request.param, **options)


class Story:
    """Puts records, and counts the query's rows."""

    def __init__(self, q):
        self.q = q
        self.count = 0

    def put(self, count=100):
        put(self.q.client, self.q.stream, numbered(self.count, self.count + count, keys=40))
        self.count += count

    def put_to(self, shard, count=10):
        """Put records that all go to one open shard."""
        low = shards_of(self.q)[shard]["HashKeyRange"]["StartingHashKey"]
        self.q.client.put_records(
            StreamName=self.q.stream,
            Records=[
                {"PartitionKey": "k", "ExplicitHashKey": low, "Data": b"%08d" % number}
                for number in range(self.count, self.count + count)
            ],
        )
        self.count += count

    def missing(self):
        return sorted(set(range(self.count)) - set(self.q.numbers()))

    def doubled(self):
        counts = collections.Counter(self.q.numbers())
        return sorted(number for number, count in counts.items() if count > 1)

    def read_all(self):
        """Run batches until every record is read and nothing is left; leases may have to be taken again first."""
        wait_until(lambda: self.q.batch() is None and self.missing() == [], "every record")
        self.q.drain()

    def is_in_order(self):
        """Whether the first copies of each shard's records are in order."""
        first = dict.fromkeys((row[0], row[1], row[2]) for row in self.q.rows)
        places = collections.defaultdict(list)
        for shard, *place in first:
            places[shard].append(place)
        return all(each == sorted(each) for each in places.values())


def shards_of(q):
    return {each["ShardId"]: each for each in q.client.list_shards(StreamName=q.stream)["Shards"]}


def split(q, shard):
    low, high = (
        int(shards_of(q)[shard]["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey")
    )
    before = shards_of(q).keys()
    q.client.split_shard(
        StreamName=q.stream, ShardToSplit=shard, NewStartingHashKey=str((low + high) // 2 + 1)
    )
    return sorted(shards_of(q).keys() - before)


def merge(q, one, other):
    before = shards_of(q).keys()
    q.client.merge_shards(StreamName=q.stream, ShardToMerge=one, AdjacentShardToMerge=other)
    return (shards_of(q).keys() - before).pop()


def delete_rows(q, *keys):
    """Delete rows by hand; all of them where none is named."""
    for row in q.table.scan().leases:
        if not keys or row.key in keys:
            q.table.write(Delete(row.key, row.counter, row.checkpoint))


def delete_table(server, q):
    server.client("dynamodb").delete_table(TableName=q.table.name)


def end_parent_and_read_on(story, reshard):
    """Read closed shards to their end, and then a batch of the first shard alone; return the last batch's numbers.

    If Spark passes starts, that batch is normally planned before the children are taken: its offset lacks them.
    """
    q = story.q
    story.put_to(SECOND)
    q.night()
    # Two batches: one that ends the closed shards, and one that is planned at once behind it.
    story.put_to(FIRST, 25)
    reshard(q)
    while story.missing():
        q.night()
    return [row[3] for row in q.last_rows]


def split_second(q):
    return split(q, SECOND)


def split_twice(q):
    """Split a shard, and its first child: the query has read the child's leases to their end too."""
    child, other = split(q, SECOND)
    return [*split(q, child), other]


def merge_second(q):
    """Split a shard before the query has read it, and merge its halves: both of them close."""
    return [merge(q, *split(q, SECOND))]


LIMIT = {"maxRecordsPerTrigger": "20"}
RESHARDS = {"a split": split_second, "two splits": split_twice, "a merge": merge_second}


def lose_table(server, q):
    delete_table(server, q)


def lose_rows(server, q):
    del server
    delete_rows(q)


def lose_own_rows(server, q):
    """Delete the leases in the last offset."""
    del server
    delete_rows(q, *q.done["shards"])


def lose_others(server, q):
    """Delete the leases that are not in the last offset."""
    del server
    delete_rows(q, *(row.key for row in q.table.scan().leases if row.key not in q.done["shards"]))


def lose_one(server, q):
    del server
    delete_rows(q, max(row.key for row in q.table.scan().leases))


LOSSES = {
    "the table": lose_table,
    "every row": lose_rows,
    "the rows that the offset knows": lose_own_rows,
    "the rows that it does not know": lose_others,
    "one row": lose_one,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("reshard", RESHARDS.values(), ids=RESHARDS)
def test_nightly_runs_read_what_follows_closed_shards_once_their_leases_are_gone(
    server, nightly, reshard, lose
):
    story = Story(q := nightly(**LIMIT))
    last = end_parent_and_read_on(story, reshard)
    lose(server, q)
    for _ in range(3):
        story.put(10)
        q.night()
    q.night()
    assert story.missing() == []
    assert set(story.doubled()) <= set(last)
    assert story.is_in_order()


def test_nightly_runs_read_a_merged_shard_that_waits_for_a_parent_without_a_lease(server, nightly):
    del server
    story = Story(q := nightly(**LIMIT))
    end_parent_and_read_on(story, merge_second)
    parents = [
        shard["ShardId"]
        for shard in shards_of(q).values()
        if "EndingSequenceNumber" in shard["SequenceNumberRange"]
    ]
    delete_rows(q, SECOND, max(parents))
    story.put(10)
    q.night()
    assert story.missing() == []


@pytest.mark.parametrize("reshard", RESHARDS.values(), ids=RESHARDS)
def test_a_running_query_reads_what_follows_closed_shards_once_their_leases_are_gone(server, query, reshard):
    story = Story(q := query(**LIMIT))
    last = end_parent_and_read_on(story, reshard)
    delete_table(server, q)
    story.put(10)
    q.reader = q.fresh()
    q.drain()
    assert story.missing() == []
    assert set(story.doubled()) <= set(last)
    assert story.is_in_order()


def test_a_table_restored_from_before_a_split_costs_the_last_batch_at_most(server, nightly):
    story = Story(q := nightly(**LIMIT))
    story.put()
    while story.missing():
        q.night()
    dynamo = server.client("dynamodb")
    backup = dynamo.scan(TableName=q.table.name)["Items"]
    last = end_parent_and_read_on(story, split_second)
    story.put(10)
    q.night()
    last += [row[3] for row in q.last_rows]
    delete_rows(q)
    for item in backup:
        dynamo.put_item(TableName=q.table.name, Item=item)
    for _ in range(3):
        story.put(10)
        q.night()
    q.night()
    assert story.missing() == []
    assert set(story.doubled()) <= set(last)
    assert story.is_in_order()


# --- under a query that runs ----------------------------------------------------------------------------------------


def standing(q):
    """The unfinished leases, by key."""
    try:
        return {row.key for row in q.table.scan().leases if not row.is_ended}
    except NotFound:
        return set()


@pytest.mark.parametrize("lose", [lose_table, lose_rows, lose_one], ids=["the table", "every row", "one row"])
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_an_idle_query_whose_leases_somebody_deletes_repeats_nothing(server, query, is_split, lose):
    story = Story(q := query())
    story.put()
    q.drain()
    if is_split:
        split(q, SECOND)
        story.put()
        q.drain()
    before = standing(q)
    lose(server, q)
    wait_until(lambda: q.batch() is None and standing(q) >= before, "the leases to be made again")
    for _ in range(2):
        story.put()
        story.read_all()
    assert story.doubled() == []


@pytest.mark.parametrize("lose", [lose_table, lose_rows, lose_one], ids=["the table", "every row", "one row"])
def test_a_query_whose_leases_somebody_deletes_in_a_batch_repeats_that_batch_at_most(server, query, lose):
    story = Story(q := query())
    story.put()
    q.drain()
    story.put()
    end = q.next_plan()
    lose(server, q)
    q.commit(end, q.execute(end))
    last = [row[3] for row in q.last_rows]
    story.put()
    story.read_all()
    assert set(story.doubled()) <= set(last)


# --- in a folder, which is removed ------------------------------------------------------------------------------------


def remove_folder(q):
    folder = Path(q.table.name.removeprefix("file://"))
    folder.rename(folder.with_name(f"removed-{time.monotonic_ns()}"))


@pytest.fixture
def in_folder(tmp_path):
    return {"leaseTable": f"file://{tmp_path}/leases"}


@pytest.mark.parametrize("reshard", RESHARDS.values(), ids=RESHARDS)
def test_nightly_runs_read_what_follows_closed_shards_once_their_folder_is_gone(nightly, in_folder, reshard):
    story = Story(q := nightly(**LIMIT, **in_folder))
    last = end_parent_and_read_on(story, reshard)
    remove_folder(q)
    for _ in range(3):
        story.put(10)
        q.night()
    q.night()
    assert story.missing() == []
    assert set(story.doubled()) <= set(last)
    assert story.is_in_order()


def test_an_idle_query_whose_folder_is_removed_repeats_nothing(query, in_folder):
    story = Story(q := query(**in_folder))
    story.put()
    q.drain()
    before = standing(q)
    remove_folder(q)
    wait_until(lambda: q.batch() is None and standing(q) >= before, "the leases to be made again")
    for _ in range(2):
        story.put()
        story.read_all()
    assert (story.missing(), story.doubled()) == ([], [])


def test_a_query_whose_folder_is_removed_in_a_batch_repeats_that_batch_at_most(query, in_folder):
    story = Story(q := query(**in_folder))
    story.put()
    q.drain()
    story.put()
    end = q.next_plan()
    remove_folder(q)
    q.commit(end, q.execute(end))
    last = [row[3] for row in q.last_rows]
    story.put()
    story.read_all()
    assert set(story.doubled()) <= set(last)


# --- another name for the application or its leases -------------------------------------------------------------------

MOVES = {
    "another application": {"applicationName": "{}-new"},
    "no name": {"applicationName": None},
    "another table": {"leaseTable": "{}-leases"},
    "a folder": {"leaseTable": "file://{folder}/leases"},
}


def move(q, folder, options):
    for name, value in options.items():
        if value is None:
            del q.given[name]
        else:
            q.given[name] = value.format(q.stream, folder=folder)


@pytest.mark.parametrize("options", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("reshard", [None, *RESHARDS.values()], ids=["whole", *RESHARDS])
def test_a_query_that_gets_another_lease_table_repeats_nothing(nightly, tmp_path, caplog, options, reshard):
    story = Story(q := nightly(**LIMIT))
    if reshard is None:
        story.put()
        while story.missing():
            q.night()
    else:
        end_parent_and_read_on(story, reshard)
    move(q, tmp_path, options)
    assert q.night() == []
    for _ in range(3):
        story.put(10)
        q.night()
    q.night()
    assert (story.missing(), story.doubled()) == ([], [])
    assert story.is_in_order()
    assert [record for record in caplog.records if "are read again" in record.getMessage()] == []


@pytest.mark.parametrize(
    ("option", "remedy"), [("kinesis.dynamodb.tableName", "leaseTable"), ("DYNAMODB.tablename", None)]
)
def test_a_query_whose_leases_are_in_the_table_of_a_former_option_is_refused(nightly, option, remedy):
    table = f"positions-{uuid.uuid4().hex}"
    story = Story(q := nightly(leaseTable=table))
    story.put(10)
    q.night()
    del q.given["leaseTable"]
    q.given[option] = table
    with pytest.raises(OptionError, match=rf"Set leaseTable={table} .* copies its leases to table app-"):
        q.night()
    del q.given[option]
    if remedy is not None:
        q.given[remedy] = table
    story.put(10)
    q.night()
    assert (story.missing(), story.doubled()) == ([], [])


@pytest.mark.parametrize("options", MOVES.values(), ids=MOVES)
def test_a_query_that_goes_back_to_the_lease_table_that_it_had_repeats_nothing(nightly, tmp_path, options):
    story = Story(q := nightly(**LIMIT))
    first = dict(q.given)
    for given in (first, None, first):
        if given is None:
            move(q, tmp_path, options)
        else:
            q.given = dict(given)
        for _ in range(2):
            story.put(10)
            q.night()
    q.night()
    assert (story.missing(), story.doubled()) == ([], [])


def run_a_batch_and_die(story, q):
    """Run a batch whose driver dies before its commit, while records arrive; return its end and its rows."""
    story.put()
    q.drain()
    story.put()
    end = q.next_plan()
    rows = q.execute(end)
    story.put()
    q.die()
    return end, rows


def test_a_batch_that_a_kill_cut_short_has_the_same_rows_under_another_name(query, tmp_path):
    story = Story(q := query())
    end, rows = run_a_batch_and_die(story, q)
    move(q, tmp_path, MOVES["a folder"])
    q.reader = q.fresh()
    assert q.execute(end) == rows
    q.commit(end, rows)
    q.drain()
    assert (story.missing(), story.doubled()) == ([], [])


def test_a_batch_that_runs_again_without_its_claims_leaves_its_records_to_the_next_one(query):
    story = Story(q := query())
    end, rows = run_a_batch_and_die(story, q)
    delete_rows(q)
    q.reader = q.fresh()
    assert q.execute(end) == []
    q.commit(end, rows)  # the sink has the batch already, and skips it
    story.read_all()
    assert story.doubled() == sorted(row[3] for row in rows)


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_a_copy_of_a_query_under_another_name_reads_everything_for_itself(query, is_split):
    story = Story(q := query())
    story.put()
    q.drain()
    story.put()
    q.drain()
    copy, last = q.done, {row[3] for row in q.last_rows}
    if is_split:
        split(q, SECOND)
    for _ in range(2):  # the first one goes on
        story.put()
        q.drain()
    fork = query(stream=q.stream, applicationName=f"{q.stream}-fork")
    fork.done, fork.rows = copy, [row for row in q.rows if row[3] < 200]
    fork_story = Story(fork)
    fork_story.count = story.count
    fork_story.read_all()
    assert set(fork_story.doubled()) <= last
    story.put()
    fork_story.count = story.count
    fork_story.read_all()
    story.read_all()
    assert story.doubled() == []


def deny(monkeypatch, name):
    """Deny access to the query's earlier lease table."""
    scan = DynamoLeaseTable.scan

    def checked(table, part=None):
        if table.name == name:
            raise AccessDenied(f"Scan on lease table {name}: not allowed", operation="Scan")
        return scan(table, part)

    monkeypatch.setattr(DynamoLeaseTable, "scan", checked)


@pytest.mark.parametrize("why", ["gone", "denied", "emptied"])
def test_a_query_whose_earlier_table_shows_nothing_says_which_batch_comes_again(
    server, nightly, caplog, monkeypatch, why
):
    story = Story(q := nightly())
    story.put()
    q.night()
    story.put()
    q.night()
    former = q.table.name
    if why == "gone":
        delete_table(server, q)
    elif why == "emptied":
        delete_rows(q)
    else:
        deny(monkeypatch, former)
    q.given["applicationName"] = f"{q.stream}-new"
    story.put()
    q.night()
    q.night()
    assert story.missing() == []
    assert set(story.doubled()) == set(range(100, 200))
    said = [record.getMessage() for record in caplog.records if "are read again" in record.getMessage()]
    assert len(said) == 1
    reason = {"gone": "cannot be read", "denied": "not allowed", "emptied": "is empty"}[why]
    assert "batch 2" in said[0]
    assert f"the claims were in lease table {former}, which" in said[0]
    assert reason in said[0]


# --- others in the application ----------------------------------------------------------------------------------------


def test_two_queries_of_one_application_lose_its_table_and_read_everything(server, query):
    """Each has the positions of its own shards: the first one leaves the other's shards to it for a while."""
    story = Story(one := query(shards=4, workerId="one"))
    other = query(stream=one.stream, applicationName=one.given["applicationName"], workerId="other")
    wait_until(
        lambda: (
            [q.batch() for q in (one, other)] and len({row.reader for row in one.table.scan().leases}) == 2
        ),
        "both to have leases",
    )

    def read():
        wait_until(
            lambda: (
                [q.batch() for q in (one, other)]
                and set(one.numbers()) | set(other.numbers()) == set(range(story.count))
            ),
            "every record",
        )

    for _ in range(2):
        story.put()
        read()
    for q in (one, other):
        q.drain()
    counts = collections.Counter(one.numbers() + other.numbers())
    for q in (one, other):
        q.die()
    delete_table(server, one)
    story.put()
    read()
    after = collections.Counter(one.numbers() + other.numbers())
    assert {number for number, count in after.items() if count > 1} <= {
        number for number in counts if number >= 100
    }


def test_a_run_with_available_now_waits_for_the_leases_of_a_worker_that_has_died(query):
    story = Story(q := query())
    story.put()
    q.execute(q.next_plan())
    q.die()  # its leases stay in its name
    other = query(stream=q.stream, applicationName=q.given["applicationName"])
    assert len({row[3] for row in other.night()}) == 100


def test_a_run_with_available_now_fails_where_a_row_cannot_be_read(server, query):
    story = Story(q := query())
    story.put()
    q.night()
    server.client("dynamodb").update_item(
        TableName=q.table.name,
        Key={"leaseKey": {"S": SECOND}},
        UpdateExpression="REMOVE checkpoint",
    )
    story.put()
    with pytest.raises(Rejected, match=f"row '{SECOND}' cannot be read"):
        q.night()


def test_a_lease_that_others_have_ended_and_cleared_is_not_made_again(server, query):
    story = Story(q := query(shards=1))
    story.put()
    q.drain()
    children = split(q, FIRST)
    story.put(40)
    for key in children:
        span = shards_of(q)[key]["HashKeyRange"]
        owned = HashRange(int(span["StartingHashKey"]), int(span["EndingHashKey"]))
        last = at_record(Hands(server, q, key).records()[-1])
        q.table.write(Create(Lease(key, checkpoint=last, parents=frozenset({FIRST}), hash_range=owned)))
    delete_rows(q, FIRST)
    query_worker = q.reader._planner._joined.query_worker
    wait_until(lambda: query_worker._commands, "the loss of the lease to be noticed")
    put(q.client, q.stream, numbered(140, 180, keys=40))
    wait_until(lambda: q.batch() is None and len(q.rows) == 140, "the records that came behind the others'")
    assert q.numbers() == [*range(100), *range(140, 180)]
    assert FIRST not in {row.key for row in q.table.scan().leases}
