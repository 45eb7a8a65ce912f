"""Run a worker that behaves like the Java KCL 2.x as a separate process; it records what it processed.

`python kcl2_worker.py ENDPOINT STREAM TABLE WORKER FOLDER FAILOVER_S` joins the application of the lease table TABLE. It knows
nothing of Penstock: it reads with boto3, writes KCL's attributes under KCL's conditions, takes by force when it has fewer
than its share, and understands neither hand-overs nor claims. FOLDER/WORKER.jsonl gets one line per event, written by one
system call, records before the checkpoint that covers them. It ends at SIGTERM without giving its leases back, as
the KCL does.

Source:
    KCL 2.7.3: the lease taker, the renewer, the lease refresher's conditions, the shutdown task at a shard's end.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.core.aggregation import deaggregate

EPSILON_S = 0.025
IDLE_S = 0.2
CHECKPOINT_S = 1.5
PAGE_RECORDS = 40
PENDING = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")


def number(item, name):
    return int(item[name]["N"]) if name in item else 0


def is_refused(error):
    return error.response["Error"]["Code"] == "ConditionalCheckFailedException"


@dataclass
class Held:
    """A lease that this worker believes to hold."""

    key: str
    counter: int
    renewed_s: float
    done: tuple[int, int] | None
    """Sequence and sub-sequence number of the last processed record, or None at a starting point."""
    parents: frozenset[str]
    iterator: str | None = None
    is_ended: bool = False
    checkpointed: tuple[int, int] | None = None
    checkpointed_s: float = 0.0


class Worker:
    """KCL's loops, one after the other in one thread."""

    def __init__(self, endpoint, stream, table, name, folder, failover_s):
        aws = {
            "endpoint_url": endpoint,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
            "config": Config(retries={"total_max_attempts": 3}, connect_timeout=5, read_timeout=5),
        }
        self.kinesis, self.dynamodb = boto3.client("kinesis", **aws), boto3.client("dynamodb", **aws)
        self.stream, self.table, self.name, self.failover_s = stream, table, name, failover_s
        self.file = os.open(Path(folder) / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.held: dict[str, Held] = {}
        self.seen: dict[str, tuple[int, float | None]] = {}
        """Of each lease its counter, and when it was first seen so; None while nobody has owned it: very old."""
        self.is_stopping = False

    def note(self, event, shard, **more):
        os.write(self.file, (json.dumps({"event": event, "shard": shard, **more}) + "\n").encode())

    def run(self):
        take_s = renew_s = 0.0
        while not self.is_stopping:
            try:
                if time.monotonic() >= take_s:
                    self.take()
                    take_s = time.monotonic() + 2 * (self.failover_s + EPSILON_S)
                if time.monotonic() >= renew_s:
                    renew_s = time.monotonic() + self.failover_s / 3 - EPSILON_S
                    self.renew_all()
                for lease in list(self.held.values()):
                    self.read(lease)
            except (BotoCoreError, ClientError) as error:  # logged and tried again, as KCL does
                print(f"{self.name}: {error!r}", file=sys.stderr)  # noqa: T201 - the run's log
            time.sleep(IDLE_S)

    # --- the lease table -----------------------------------------------------------------------------------

    def scan(self):
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=self.table)
        return [item for page in pages for item in page["Items"]]

    def update(self, key, counter, sets, removes=(), adds=()):
        """Write under KCL's condition, the counter as last seen; it is one more then."""
        parts = {"leaseCounter": {"N": str(counter + 1)}, **sets}
        names = {f"#{at}": name for at, name in enumerate([*parts, *removes, *adds])}
        values = {f":{at}": value for at, value in enumerate(parts.values())}
        count = len(parts)
        expression = "SET " + ", ".join(f"#{at} = :{at}" for at in range(count))
        if removes:
            expression += " REMOVE " + ", ".join(f"#{count + at}" for at in range(len(removes)))
        if adds:
            values[":one"] = {"N": "1"}
            first = count + len(removes)
            expression += " ADD " + ", ".join(f"#{first + at} :one" for at in range(len(adds)))
        try:
            self.dynamodb.update_item(
                TableName=self.table,
                Key={"leaseKey": {"S": key}},
                UpdateExpression=expression,
                ConditionExpression="#0 = :seen",
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={**values, ":seen": {"N": str(counter)}},
            )
        except ClientError as error:
            if is_refused(error):
                return False
            raise
        return True

    def take(self):
        items = {item["leaseKey"]["S"]: item for item in self.scan()}
        now_s = time.monotonic()
        for key, item in items.items():
            counter, before = number(item, "leaseCounter"), self.seen.get(key)
            if before is None:
                self.seen[key] = (counter, now_s if "leaseOwner" in item else None)
            elif before[0] != counter:
                self.seen[key] = (counter, now_s)
        self.seen = {key: self.seen[key] for key in items}
        for key in self.chosen(items, now_s):
            item = items[key]
            if key in self.held:
                continue  # it is renewed here
            counter, owner = number(item, "leaseCounter"), item.get("leaseOwner", {}).get("S")
            is_stolen = owner is not None and owner != self.name
            adds = ("ownerSwitchesSinceCheckpoint",) if is_stolen else ()
            if self.update(key, counter, {"leaseOwner": {"S": self.name}}, adds=adds):
                self.begin(item, counter + 1, owner)

    def chosen(self, items, now_s):
        """Return the leases to take now, in the order of KCL's taker."""
        ages = {key: math.inf if since is None else now_s - since for key, (_, since) in self.seen.items()}
        owners = {key: item.get("leaseOwner", {}).get("S") for key, item in items.items()}
        available = [key for key in items if owners[key] is None or ages[key] > self.failover_s]
        counts = Counter(owners[key] for key in items if key not in available)
        counts.setdefault(self.name, 0)
        share = 1 if len(counts) >= len(items) else math.ceil(len(items) / len(counts))
        very_old = [key for key in items if ages[key] > 3 * self.failover_s]
        if very_old:
            return random.sample(very_old, len(very_old))
        need = share - counts[self.name]
        if need <= 0:
            return []
        if available:
            random.shuffle(available)
            return available[:need]
        donor, load = max(counts.items(), key=lambda each: each[1])
        if load < share or donor == self.name or (load == share and need <= 1):
            return []
        return [random.choice([key for key in items if owners[key] == donor])]

    def begin(self, item, counter, owner):
        key, text = item["leaseKey"]["S"], item["checkpoint"]["S"]
        done = (int(text), number(item, "checkpointSubSequenceNumber")) if text.isdigit() else None
        parents = frozenset(item.get("parentShardId", {}).get("SS", ()))
        self.held[key] = Held(key, counter, time.monotonic(), done, parents, is_ended=text == "SHARD_END")
        self.held[key].checkpointed = done
        self.note("take", key, owner=owner, counter=counter)

    def lose(self, lease):
        del self.held[lease.key]
        self.note("lost", lease.key)

    def write(self, lease, sets, removes=()):
        """Write one's own lease; it is lost when somebody else has written it."""
        if not self.update(lease.key, lease.counter, sets, removes):
            self.lose(lease)
            return False
        lease.counter += 1
        lease.renewed_s = time.monotonic()
        return True

    def is_expired(self, lease):
        return time.monotonic() - lease.renewed_s > self.failover_s

    def renew_all(self):
        for lease in sorted(self.held.values(), key=lambda each: each.key, reverse=True):
            if self.is_expired(lease):
                self.lose(lease)
            else:
                self.write(lease, {})

    def checkpoint(self, lease, text, sub):
        sets = {
            "checkpoint": {"S": text},
            "checkpointSubSequenceNumber": {"N": str(sub)},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        }
        if self.is_expired(lease):
            self.lose(lease)
            return False
        if not self.write(lease, sets, PENDING):
            return False
        self.note("checkpoint", lease.key, position=f"{text}.{sub}")
        return True

    # --- one shard -------------------------------------------------------------------------------------------

    def waits_for_parents(self, lease):
        for parent in sorted(lease.parents):
            key = {"leaseKey": {"S": parent}}
            item = self.dynamodb.get_item(TableName=self.table, Key=key).get("Item")
            if item is not None and item["checkpoint"]["S"] != "SHARD_END":
                return True
        lease.parents = frozenset()
        return False

    def read(self, lease):
        if lease.is_ended or self.waits_for_parents(lease):
            return
        if lease.iterator is None:
            lease.iterator = self.open(lease)
        iterator, lease.iterator = lease.iterator, None  # a new one after an error
        page = self.kinesis.get_records(ShardIterator=iterator, Limit=PAGE_RECORDS)
        lease.iterator = page.get("NextShardIterator")
        self.process(lease, page["Records"])
        if lease.iterator is None:
            self.end(lease, page["ChildShards"])
        elif lease.done != lease.checkpointed and time.monotonic() > lease.checkpointed_s + CHECKPOINT_S:
            lease.checkpointed_s = time.monotonic()
            if self.checkpoint(lease, str(lease.done[0]), lease.done[1]):
                lease.checkpointed = lease.done

    def open(self, lease):
        where = {"ShardIteratorType": "TRIM_HORIZON"}
        if lease.done is not None:
            where = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": str(lease.done[0])}
        answer = self.kinesis.get_shard_iterator(StreamName=self.stream, ShardId=lease.key, **where)
        return answer["ShardIterator"]

    def process(self, lease, records):
        lines = []
        for record in records:
            sequence = int(record["SequenceNumber"])
            inner = deaggregate(record["Data"])
            whole = [(record["PartitionKey"], record["Data"])]
            users = whole if inner is None else [(each.partition_key, each.data) for each in inner]
            for sub, (key, data) in enumerate(users):
                if lease.done is None or (sequence, sub) > lease.done:
                    lines.append([sequence, sub, key, data.decode()])
                    lease.done = (sequence, sub)
        if lines:
            self.note("records", lease.key, records=lines)

    def end(self, lease, children):
        """Create the children's leases, then checkpoint the shard's end; a merge waits for the other parent's lease."""
        if len(children) == 1:
            others = set(children[0]["ParentShards"]) - {lease.key}
            stand = {item["leaseKey"]["S"] for item in self.scan()}
            if not others <= stand:
                self.lose(lease)  # KCL tries again for a while, and then drops the lease
                return
        for child in children:
            span = child["HashKeyRange"]
            item = {
                "leaseKey": {"S": child["ShardId"]},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": "TRIM_HORIZON"},
                "checkpointSubSequenceNumber": {"N": "0"},
                "parentShardId": {"SS": child["ParentShards"]},
                "startingHashKey": {"S": span["StartingHashKey"]},
                "endingHashKey": {"S": span["EndingHashKey"]},
            }
            try:
                self.dynamodb.put_item(
                    TableName=self.table, Item=item, ConditionExpression="attribute_not_exists(leaseKey)"
                )
            except ClientError as error:
                if not is_refused(error):
                    raise
        self.dynamodb.update_item(
            TableName=self.table,
            Key={"leaseKey": {"S": lease.key}},
            UpdateExpression="SET childShardIds = :children",
            ConditionExpression="attribute_exists(leaseKey)",
            ExpressionAttributeValues={":children": {"SS": [child["ShardId"] for child in children]}},
        )
        lease.is_ended = True
        self.checkpoint(lease, "SHARD_END", 0)


def main():
    endpoint, stream, table, name, folder, failover_s = sys.argv[1:]
    worker = Worker(endpoint, stream, table, name, folder, float(failover_s))

    def stop(*_):
        worker.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
