"""The lease table's port: every write on every row of a small set has the outcome of the pure rule.

The suite runs against DynamoDB as moto serves it in the embedded server, and against the table in memory.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from contract.ports.lease_cases import (
    BASE,
    KEY,
    ME,
    OTHER,
    ROWS,
    WRITES,
    claim,
    differences,
    lay,
    same,
)
from penstock.aws.connection import client_for
from penstock.aws.lease_codec import write_item
from penstock.aws.lease_expressions import update_for
from penstock.aws.lease_table import DynamoLeaseTable
from penstock.core.leases.lease import (
    Lease,
    TablePart,
)
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Promote,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import (
    TRIM_HORIZON,
    at_record,
)
from penstock.errors import NotFound, Rejected, ServiceError, Throttled, UnknownOutcome
from penstock.runtime.memory_lease_table import MemoryLeaseTable


def test_every_row_is_read_as_it_was_written(dynamo):
    server, table = dynamo
    for row in ROWS:
        lay(server, table, row)
        assert same(table.fetch(KEY), row)


def test_each_write_over_some_rows_does_what_the_pure_rule_does(dynamo):
    """A part of the pairs: each write meets several rows, each row several writes of each kind."""
    pairs = [
        (row, write) for i, row in enumerate(ROWS) for j, write in enumerate(WRITES) if (i + j) % 31 == 0
    ]
    assert differences(dynamo, pairs) == []


def test_the_table_in_memory_does_what_the_pure_rule_does():
    for row in ROWS:
        for write in WRITES:
            table = MemoryLeaseTable()
            if row is not None:
                table.write(Create(row))
            expected = apply_write(row, write)
            assert table.write(write) == expected
            after = expected.lease if isinstance(expected, Applied) else row
            assert same(table.fetch(KEY), after)
            assert table.scan().leases == (() if after is None else (after,))


def test_a_row_without_a_sub_sequence_number_counts_as_one_with_0(dynamo):
    server, table = dynamo
    item = write_item(replace(BASE, checkpoint=at_record("10")))
    del item["checkpointSubSequenceNumber"]
    for write in WRITES:
        server.client("dynamodb").put_item(TableName=table.name, Item=item)
        assert table.write(write) == apply_write(replace(BASE, checkpoint=at_record("10")), write), write


@pytest.mark.parametrize(
    "write",
    [write for write in WRITES if not isinstance(write, Create)],
    ids=lambda write: type(write).__name__,
)
def test_an_expression_is_one_that_the_service_takes(write):
    """The service is stricter than moto: no unused names or values, no doubled parentheses, no path twice."""
    request = update_for(write, previous_owner=OTHER).request()
    expressions = f"{request['ConditionExpression']} {request.get('UpdateExpression', '')}"
    used = re.findall(r"[#:]\w+", expressions)
    assert set(used) == {*request["ExpressionAttributeNames"], *request.get("ExpressionAttributeValues", ())}
    assert not has_doubled_parentheses(request["ConditionExpression"])
    changed = re.findall(r"(#\w+) = ", request.get("UpdateExpression", ""))
    changed += re.findall(r"#\w+", request.get("UpdateExpression", "").partition("REMOVE")[2])
    assert len(changed) == len(set(changed))


def has_doubled_parentheses(expression):
    opened, spans = [], set()
    for place, character in enumerate(expression):
        if character == "(":
            opened.append(place)
        elif character == ")":
            spans.add((opened.pop(), place))
    return any((start + 1, end - 1) in spans for start, end in spans)


def test_the_check_for_doubled_parentheses_finds_them():
    assert has_doubled_parentheses("a AND ((b OR c))")
    assert not has_doubled_parentheses("a AND (b OR (c)) AND (size(d) < e)")


def test_attributes_that_are_not_known_stay(dynamo):
    server, table = dynamo
    for write in (
        Take(KEY, 7, "third"),
        Checkpoint(KEY, 7, ME, at_record("11")),
        End(KEY, 7, ME),
        Release(KEY, 7, ME),
    ):
        lay(server, table, BASE)
        table.write(write)
        item = server.client("dynamodb").get_item(TableName=table.name, Key={"leaseKey": {"S": KEY}})["Item"]
        assert item["unknown"] == {"S": "stays"}


def test_rows_that_are_no_leases_are_skipped_and_reported(dynamo):
    server, table = dynamo
    lay(server, table, BASE)
    client = server.client("dynamodb")
    strange = [
        {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}},  # the KCL's own: not worth a word
        {"leaseKey": {"S": "unheard"}, "entityType": {"S": "OF"}},
        {"leaseKey": {"S": "broken"}, "leaseCounter": {"S": "seven"}, "checkpoint": {"S": "TRIM_HORIZON"}},
        {"leaseKey": {"S": "partial"}, "leaseOwner": {"S": "me"}},
        {"leaseKey": {"S": "odd"}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "somewhere"}},
    ]
    for item in strange:
        client.put_item(TableName=table.name, Item=item)
    scan = table.scan()
    assert [lease.key for lease in scan.leases] == [KEY]
    assert sorted(row.key for row in scan.skipped_rows) == ["broken", "odd", "partial", "unheard"]
    for item in strange:
        client.delete_item(TableName=table.name, Key={"leaseKey": item["leaseKey"]})


def test_one_of_sixteen_takers_wins(dynamo):
    server, table = dynamo
    lay(server, table, replace(BASE, owner=None))
    outcomes = []

    def take(worker):
        outcomes.append(table.write(Take(KEY, 7, worker)))

    threads = [threading.Thread(target=take, args=(f"w{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome.lease.owner for outcome in outcomes if isinstance(outcome, Applied)]
    assert len(winners) == 1
    assert table.fetch(KEY).owner == winners[0]
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 15


@pytest.mark.parametrize(
    "write",
    [
        Take(KEY, 7, ME),
        Renew(KEY, 7, ME),
        Checkpoint(KEY, 7, ME, at_record("11")),
        LateCheckpoint(KEY, at_record("11")),
        End(KEY, 7, ME),
        Release(KEY, 7, ME, at_record("11")),
        RequestHandover(KEY, ME, OTHER),
        Claim(KEY, claim(5, "50", start=BASE.checkpoint), BASE.checkpoint, (4, "r1")),
        Promote(KEY, ME, 4, at_record("40")),
        Delete(KEY, 7, BASE.checkpoint),
        Reset(KEY, 7, TRIM_HORIZON),
    ],
    ids=lambda write: type(write).__name__,
)
def test_a_write_whose_answer_is_lost_is_found_to_stand(dynamo, write):
    server, table = dynamo
    row = replace(BASE, pending_checkpoint=at_record("40"), claims=(claim(4, "40"),))
    lay(server, table, row)
    operation = "dynamodb.DeleteItem" if isinstance(write, Delete) else "dynamodb.UpdateItem"
    server.faults.drop_after(operation)
    outcome = table.write(write)
    assert isinstance(outcome, Applied)
    assert same(outcome.lease, apply_write(row, write).lease)


@pytest.mark.parametrize(
    "write",
    [
        Take(KEY, 7, ME),
        Checkpoint(KEY, 7, ME, BASE.checkpoint),
        Checkpoint(KEY, 7, ME, at_record("11")),
        Renew(KEY, 7, ME),
        Release(KEY, 7, ME, at_record("11")),
        End(KEY, 7, ME),
    ],
    ids=repr,
)
def test_a_write_that_was_lost_before_the_lease_was_stolen_is_refused_and_shows_who_stole_it(dynamo, write):
    server, table = dynamo
    lay(server, table, BASE)
    server.faults.drop_before("dynamodb.UpdateItem")
    stolen = []

    class StealingFirst(DynamoLeaseTable):
        def fetch(self, key):
            if not stolen:
                stolen.append(table.write(Take(KEY, 7, OTHER)))
            return super().fetch(key)

    outcome = StealingFirst(table.name, table._options).write(write)
    assert isinstance(outcome, Refused)
    assert (outcome.row.owner, outcome.row.counter) == (OTHER, 8)


def test_a_create_whose_answer_is_lost_is_found_to_stand(dynamo):
    server, table = dynamo
    lay(server, table, None)
    server.faults.drop_after("dynamodb.PutItem")
    assert table.write(Create(BASE)) == Applied(BASE)
    assert same(table.fetch(KEY), BASE)


def test_a_write_that_cannot_be_settled_is_unknown(dynamo):
    server, table = dynamo
    lay(server, table, BASE)
    server.faults.drop_before("dynamodb.UpdateItem", count=None)
    with pytest.raises(UnknownOutcome, match=f"row {KEY}: Renew was sent and could not be settled"):
        table.write(Renew(KEY, 7, ME))
    server.faults.clear()
    assert same(table.fetch(KEY), BASE)


def test_a_row_that_is_no_lease_is_refused_by_every_write_and_stays(dynamo):
    server, table = dynamo
    leader = {"leaseKey": {"S": KEY}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "host-1"}}
    client = server.client("dynamodb")
    client.put_item(TableName=table.name, Item=leader)
    for write in WRITES:
        # moto finds the size of an attribute that is not there a mistake; the service lets the condition fail.
        with pytest.raises(Rejected, match=r"its entityType is LEADER|Invalid attribute name checkpoint"):
            table.write(write)
    assert client.get_item(TableName=table.name, Key={"leaseKey": {"S": KEY}})["Item"] == leader


def test_a_throttled_write_is_tried_again_inside_its_bound(dynamo):
    server, table = dynamo
    lay(server, table, BASE)
    server.faults.throttle("dynamodb.UpdateItem", count=3)
    assert isinstance(table.write(Renew(KEY, 7, ME)), Applied)
    server.faults.throttle("dynamodb.UpdateItem", count=None)
    with pytest.raises(ServiceError, match="ProvisionedThroughputExceeded"):
        table.write(Renew(KEY, 8, ME))
    server.faults.clear()


def test_a_table_of_another_kind_is_refused(dynamo):
    server, table = dynamo
    server.client("dynamodb").create_table(
        TableName="other-kind",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(ServiceError, match="is not a lease table: its key is id"):
        DynamoLeaseTable("other-kind", table._options).ensure_exists()


def test_a_scan_gives_every_page_whether_in_one_pass_or_in_segments(dynamo):
    server, table = dynamo
    large = DynamoLeaseTable("large", table._options)
    large.ensure_exists()
    # A page ends at 1 MB.
    for number in range(40):
        item = {**write_item(Lease(f"shardId-{number:012d}")), "unknown": {"B": bytes(100_000)}}
        server.client("dynamodb").put_item(TableName="large", Item=item)
    server.reset_calls()
    keys = {f"shardId-{number:012d}" for number in range(40)}
    assert {lease.key for lease in large.scan().leases} == keys
    assert server.calls().count("dynamodb.Scan") >= 4


@pytest.mark.parametrize("kind", ["DynamoDB", "memory"])
@pytest.mark.parametrize("count", [1, 4])
def test_every_row_is_in_one_part_and_always_in_the_same(dynamo, kind, count):
    _, table = dynamo
    parted = MemoryLeaseTable() if kind == "memory" else DynamoLeaseTable("parted", table._options)
    parted.ensure_exists()
    for number in range(60):
        parted.write(Create(Lease(key_of(number))))
    parts = [TablePart(number, count) for number in range(count)]
    found = [[lease.key for lease in parted.scan(part).leases] for part in parts]
    assert sorted(key for keys in found for key in keys) == sorted(key_of(number) for number in range(60))
    assert min(len(keys) for keys in found) > 0
    assert [{lease.key for lease in parted.scan(part).leases} for part in parts] == [
        set(keys) for keys in found
    ]


@pytest.fixture(params=["DynamoDB", "DynamoDB without BatchGetItem", "memory"])
def many(request, dynamo):
    """A table with 205 leases, in each implementation; the KCL's policy does not allow BatchGetItem."""
    server, table = dynamo
    in_memory = request.param == "memory"
    found = MemoryLeaseTable() if in_memory else DynamoLeaseTable("many", table._options)
    if found.ensure_exists() or in_memory:
        for number in range(205):
            found.write(Create(Lease(key_of(number), checkpoint=at_record("10", number))))
    if request.param == "DynamoDB without BatchGetItem":
        server.faults.error("BatchGetItem", count=None, status=400, code="AccessDeniedException")
    yield found
    server.faults.clear()


def key_of(number):
    return f"shardId-{number:012d}"


@pytest.mark.parametrize("count", [0, 1, 100, 101, 203])
def test_rows_are_read_by_key_and_no_others(many, count):
    wanted = [key_of(number) for number in range(count)]
    for _ in range(2):
        found = many.fetch_many([*wanted, *wanted, "missing"])
        assert found.skipped_rows == ()
        assert sorted((lease.key, str(lease.checkpoint)) for lease in found.leases) == [
            (key_of(number), f"10.{number}") for number in range(count)
        ]


def test_reading_by_key_costs_one_call_for_a_hundred_rows_and_no_scan(dynamo):
    server, table = dynamo
    server.reset_calls()
    table.fetch_many([key_of(number) for number in range(201)])
    calls = server.calls()
    assert [calls.count(f"dynamodb.{name}") for name in ("BatchGetItem", "GetItem", "Scan")] == [3, 0, 0]


def test_rows_by_key_that_are_no_leases_are_skipped_and_reported(dynamo):
    server, table = dynamo
    lay(server, table, BASE)
    client = server.client("dynamodb")
    client.put_item(TableName=table.name, Item={"leaseKey": {"S": "broken"}, "leaseOwner": {"S": "me"}})
    found = table.fetch_many([KEY, "broken"])
    assert [lease.key for lease in found.leases] == [KEY]
    assert [row.key for row in found.skipped_rows] == ["broken"]
    client.delete_item(TableName=table.name, Key={"leaseKey": {"S": "broken"}})


@contextmanager
def altered_batches(table, alter):
    """Let `alter` change what the server answered to each BatchGetItem."""
    events = client_for("dynamodb", table._options).meta.events
    events.register("after-call.dynamodb.BatchGetItem", alter)
    yield
    events.unregister("after-call.dynamodb.BatchGetItem", alter)


def leave_out(parsed, count):
    """Move rows of an answer to where DynamoDB puts those for which it had no capacity left."""
    for name, items in parsed["Responses"].items():
        left = items[len(items) - count :]
        del items[len(items) - count :]
        if left:
            parsed["UnprocessedKeys"] = {
                name: {"Keys": [{"leaseKey": item["leaseKey"]} for item in left], "ConsistentRead": True}
            }


def test_rows_that_a_batch_left_out_are_asked_for_again(dynamo):
    _, table = dynamo
    large = DynamoLeaseTable("left-out", table._options)
    large.ensure_exists()
    for number in range(20):
        large.write(Create(Lease(key_of(number))))
    answered = []

    def alter(parsed, **_):
        sent = sum(len(items) for items in parsed["Responses"].values())
        answered.append(sent)
        leave_out(parsed, sent // 2)

    with altered_batches(large, alter):
        found = large.fetch_many([key_of(number) for number in range(20)])
    assert sorted(lease.key for lease in found.leases) == [key_of(number) for number in range(20)]
    assert answered == [20, 10, 5, 2, 1]


def test_rows_that_are_left_out_for_good_are_throttled(dynamo):
    server, table = dynamo
    lay(server, table, BASE)
    poor = DynamoLeaseTable(table.name, dataclasses.replace(table._options, deadline_s=0.3))

    def alter(parsed, **_):
        leave_out(parsed, 1)

    with altered_batches(poor, alter), pytest.raises(Throttled, match=r"left 1 of 1 rows out .* capacity"):
        poor.fetch_many([KEY])


def test_a_missing_table_is_not_found_by_key_either(dynamo):
    _, table = dynamo
    with pytest.raises(NotFound, match="lease table nowhere"):
        DynamoLeaseTable("nowhere", table._options).fetch_many([KEY])


def test_a_table_is_made_with_the_key_of_leases_and_paid_per_request(dynamo):
    server, table = dynamo
    assert DynamoLeaseTable("made", table._options).ensure_exists() is True
    made = server.client("dynamodb").describe_table(TableName="made")["Table"]
    assert made["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_of_several_creators_one_makes_the_table_and_none_fails(dynamo):
    _, table = dynamo
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: DynamoLeaseTable("raced", table._options).ensure_exists(), range(8)))
    assert sorted(made) == [False] * 7 + [True]


def test_a_table_is_made_although_the_answer_was_lost(dynamo):
    server, table = dynamo
    server.faults.drop_after("dynamodb.CreateTable")
    answerless = DynamoLeaseTable("answerless", table._options)
    answerless.ensure_exists()
    assert answerless.scan().leases == ()


def test_a_missing_table_is_not_found(dynamo):
    _, table = dynamo
    with pytest.raises(NotFound, match="lease table nowhere"):
        DynamoLeaseTable("nowhere", table._options).scan()
