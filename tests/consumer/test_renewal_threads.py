"""A thousand leases are renewed in time although each call takes long: in virtual time, with as many threads as a consumer has."""

import heapq

import pytest

from core.leases.coordinator_bench import Bench
from penstock.consumer.worker import RENEWAL_THREADS
from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator_effects import StopReader, WriteLease
from penstock.core.leases.coordinator_events import Tick, WriteDone
from penstock.core.leases.lease import Lease

LEASES, SECONDS = 1000, 14.0


def lost_leases(thread_count, call_s):
    """Renew for some seconds, in the order in which renewals are due; return how many leases were lost."""
    edges = [(HASH_KEY_MAX + 1) * number // LEASES for number in range(LEASES + 1)]
    bench = Bench(*(Lease(f"s{n}", hash_range=HashRange(edges[n], edges[n + 1] - 1)) for n in range(LEASES)))
    bench.start()
    assert len(bench.machine.lease_phases()) == LEASES
    free_s, calls = [0.0] * thread_count, []

    def begin(effects):
        for effect in effects:
            if isinstance(effect, WriteLease):
                ends_s = max(bench.now, heapq.heappop(free_s)) + call_s
                heapq.heappush(free_s, ends_s)
                heapq.heappush(calls, (ends_s, effect.write_id, effect.write))
            elif (answer := bench.answer(effect)) is not None:
                begin(bench.feed(answer))

    while bench.now < SECONDS:
        if calls and calls[0][0] <= bench.machine.next_wake_s:
            bench.now, write_id, write = heapq.heappop(calls)
            begin(bench.feed(WriteDone(write_id, write, bench.table.write(write))))
        else:
            bench.now = max(bench.now, bench.machine.next_wake_s)
            begin(bench.feed(Tick()))
    return len({effect.key for effect in bench.of(StopReader)})


@pytest.mark.parametrize("call_s", [0.02, 0.06])
def test_a_consumer_of_a_thousand_shards_loses_no_lease_while_calls_take_long(call_s):
    assert lost_leases(RENEWAL_THREADS, call_s) == 0


def test_four_threads_would_lose_leases():
    assert lost_leases(4, 0.06) > 0
