"""Readers change inside aggregates of the KPL: each goes on at exactly the next user record."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from company_checks import place
from counterparts import KCL_2, KCL_3_COMPATIBLE, KPL, PENSTOCK, Counterpart
from worker_process import WorkerProcess

from penstock.local import LocalKinesis

COUNT = 2000
STOPS = (333, 444, 555)


@pytest.mark.parametrize(
    "kcl", [pytest.param(KCL_2, id="2.7.2"), pytest.param(KCL_3_COMPATIBLE, id="3.5.1 as 2.x")]
)
def test_a_checkpoint_inside_an_aggregate_is_where_the_next_reader_goes_on(kcl: Counterpart, tmp_path):
    with LocalKinesis(tls=True) as server:
        server.create_stream("orders", shards=1)
        parts = urlsplit(server.endpoint_url)
        KPL.run(server, tmp_path, "orders", parts.hostname, str(parts.port), str(COUNT))
        turns = zip((kcl, PENSTOCK, kcl, PENSTOCK), (*STOPS, COUNT + 1 - sum(STOPS)), strict=True)
        read = []
        for number, (counterpart, stop_after) in enumerate(turns):
            arguments = (f"worker-{number}", "orders", "billing", str(stop_after))
            with WorkerProcess(counterpart, server, tmp_path, *arguments) as worker:
                worker.wait()
                assert len(worker.records) == stop_after, worker.log()
                read.append(worker.records)
    records = [record for turn in read for record in turn]
    assert Counter(record.data for record in records) == {
        **dict.fromkeys(map(str, range(COUNT // 20)), 20),
        "first": 1,
    }
    assert all(place(one) < place(other) for one, other in pairwise(records))
    for one, other in pairwise(read):
        assert one[-1].sequence_number == other[0].sequence_number
        assert one[-1].sub_sequence_number + 1 == other[0].sub_sequence_number
