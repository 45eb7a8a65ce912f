"""Do to a lease what other workers do between two steps of a query: Penstock's workers, and Java KCL workers."""

from __future__ import annotations

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import BatchClaim
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Release,
    Take,
)
from penstock.core.position import at_record


class Hands:
    """Another worker of a query's application; each step is repeated when a renewal comes in between."""

    def __init__(self, server, query, key, name="thief"):
        self.query = query
        self.key = key
        self.name = name
        self.table = query.table
        self.dynamo = server.client("dynamodb")

    def records(self):
        """The sequence numbers of the shard, from its beginning."""
        client = self.query.client
        iterator = client.get_shard_iterator(
            StreamName=self.query.stream, ShardId=self.key, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found = []
        while iterator is not None:
            answer = client.get_records(ShardIterator=iterator)
            found += [record["SequenceNumber"] for record in answer["Records"]]
            if answer["MillisBehindLatest"] == 0:
                break
            iterator = answer.get("NextShardIterator")
        return found

    def _write(self, make):
        while True:
            row = self.table.fetch(self.key)
            outcome = self.table.write(make(row))
            if isinstance(outcome, Applied):
                return outcome.lease

    def take(self, worker=None):
        return self._write(lambda row: Take(self.key, row.counter, worker or self.name))

    def take_back(self):
        """The query has the lease again."""
        return self.take(self.query.worker)

    def checkpoint(self, place):
        """Checkpoint the record at a place of the shard."""
        position = at_record(self.records()[place])
        return self._write(lambda row: Checkpoint(self.key, row.counter, self.name, position))

    def release(self, place=None):
        position = None if place is None else at_record(self.records()[place])
        return self._write(lambda row: Release(self.key, row.counter, self.name, position))

    def ask_for_it(self):
        """Begin a hand-over: the query reads on until it gives the lease away."""
        self._update("SET checkpointOwner = leaseOwner, leaseOwner = :me", {":me": {"S": self.name}})

    def claim(self, place, batch=900):
        """Claim as a second query of the application, which has the lease."""
        row = self.table.fetch(self.key)
        end = at_record(self.records()[place])
        before = row.claim_of(self.name)
        claim = BatchClaim(self.name, batch, "run", row.checkpoint, end, b"", made_ms=1)
        before_identity = None if before is None else before.identity
        outcome = self.table.write(Claim(self.key, claim, row.checkpoint, claim_seen=before_identity))
        assert isinstance(outcome, Applied), outcome

    # --- as the KCL for Java writes -----------------------------------------------------------------------

    def java_take(self):
        self._update(
            "SET leaseOwner = :me, leaseCounter = leaseCounter + :one REMOVE checkpointOwner",
            {":me": {"S": self.name}, ":one": {"N": "1"}},
        )

    def java_checkpoint(self, place):
        self._update(
            "SET checkpoint = :at, checkpointSubSequenceNumber = :none, ownerSwitchesSinceCheckpoint = :none, "
            "leaseCounter = leaseCounter + :one "
            "REMOVE pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState",
            {":at": {"S": self.records()[place]}, ":none": {"N": "0"}, ":one": {"N": "1"}},
        )

    def java_release(self):
        self._update("SET leaseCounter = leaseCounter + :one REMOVE leaseOwner", {":one": {"N": "1"}})

    def _update(self, expression, values):
        self.dynamo.update_item(
            TableName=self.table.name,
            Key={"leaseKey": {"S": self.key}},
            UpdateExpression=expression,
            ExpressionAttributeValues=values,
        )


def put_java_row(server, query, checkpoint, place=0):
    """A lease as a Java KCL worker makes it for one of a stream's shards, under the query's application."""
    query.table.ensure_exists()
    shard = query.client.list_shards(StreamName=query.stream)["Shards"][place]
    covers = HashRange(
        int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"])
    )
    server.client("dynamodb").put_item(
        TableName=query.table.name,
        Item={
            "leaseKey": {"S": shard["ShardId"]},
            "leaseCounter": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": "0"},
            "startingHashKey": {"S": str(covers.start)},
            "endingHashKey": {"S": str(covers.end)},
        },
    )
    return shard["ShardId"]
