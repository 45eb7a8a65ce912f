"""A deploy in the middle of the day: three consumers are restarted one after the other while records arrive."""

import threading

from user_programs import CONSUMER, all_records
from waiting import wait_until


def test_three_consumers_are_restarted_one_after_the_other(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=6)
    kinesis = local_kinesis.client()
    is_evening = threading.Event()
    put = []

    def produce():
        while not is_evening.wait(0.2):
            records = [
                {"Data": b"order %d" % n, "PartitionKey": f"c{n % 40}"}
                for n in range(len(put), len(put) + 20)
            ]
            assert kinesis.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
            put.extend(records)

    customers = threading.Thread(target=produce)
    customers.start()
    try:
        fleet = [programs.start(CONSUMER, name=f"consumer-{n}") for n in range(3)]
        for consumer in fleet:
            wait_until(consumer.lines, f"the first order of {consumer.name}")
        for n, old in enumerate(list(fleet)):
            assert old.terminate() == 0
            fleet[n] = programs.start(CONSUMER, name=f"consumer-{n}-new")
            wait_until(fleet[n].lines, f"the first order of {fleet[n].name}")
    finally:
        is_evening.set()
        customers.join()
    programs.wait_for_lines(len(put))
    assert [consumer.terminate() for consumer in fleet] == [0, 0, 0]
    assert len(all_records(local_kinesis, "orders")) == len(put)
    assert programs.printed() == {f"order {n}": 1 for n in range(len(put))}  # a restart repeats nothing
    assert [consumer.log().count("WARNING") + consumer.log().count("ERROR") for consumer in fleet] == [0] * 3
