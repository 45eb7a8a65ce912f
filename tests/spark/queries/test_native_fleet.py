"""A query in a native KCL 3 fleet whose leader is played by the test."""

from __future__ import annotations

import time

from java_leader import DEADLINE_S, JavaLeader
from spark_support import numbered, put

SHARDS = ["shardId-000000000000", "shardId-000000000001"]


def test_a_query_reads_what_the_leader_assigns_and_gives_it_back_between_batches(server, client, query):
    server.create_stream("led-query", shards=2)
    leader = JavaLeader(server, "led-query-app")
    put(client, "led-query", numbered(0, 100))
    mine = query(stream="led-query", applicationName="led-query-app", workerId="spark")

    def batches_until(condition):
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, leader.rows()
            mine.batch()

    batches_until(lambda: leader.rows().keys() >= {"spark", *SHARDS})
    assert mine.rows == []
    leader.assign(SHARDS[0], "spark")
    batches_until(lambda: mine.rows)
    leader.ask_back(SHARDS[0], "spark")
    batches_until(lambda: "checkpointOwner" not in leader.rows()[SHARDS[0]])
    given, left = (leader.rows()[key] for key in SHARDS)
    assert given["leaseOwner"] == {"S": "java"}
    assert given["checkpoint"] == {"S": str(max(row[1] for row in mine.rows))}
    assert {row[0] for row in mine.rows} == {SHARDS[0]}
    assert "leaseOwner" not in left
