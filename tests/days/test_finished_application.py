"""An application is stopped for the night, and `penstock top` shows it so; one that was killed it shows as trouble."""

import json

from waiting import wait_until


def look(programs, name):
    seen = programs.penstock("top", "billing", "--once", "--json", name=name)
    assert seen.wait() == 0
    (application,) = json.loads("\n".join(seen.lines()))["applications"]
    return application


def test_an_application_is_stopped_for_the_night(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=4)
    records = [{"Data": b"order %d" % n, "PartitionKey": f"c{n}"} for n in range(100)]
    assert local_kinesis.client().put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
    arguments = ("orders", "--application", "billing", "--from", "TRIM_HORIZON", "--data")
    worker = programs.penstock("consume", *arguments, name="by-day")
    wait_until(lambda: len(worker.lines()) == 100, "all orders")
    assert worker.terminate() == 0
    by_night = look(programs, "by-night")
    shown = [by_night[name] for name in ("state", "trouble", "shards_in_trouble", "millis_behind_latest")]
    assert shown == ["no worker runs", None, 0, 0]

    again = programs.penstock("consume", *arguments, name="next-day")
    records = [{"Data": b"late order %d" % n, "PartitionKey": f"c{n}"} for n in range(50)]
    assert local_kinesis.client().put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
    wait_until(lambda: len(again.lines()) == 50, "all late orders")
    again.end()  # as a machine that is switched off
    killed = look(programs, "after-the-kill")
    assert (killed["state"], killed["trouble"], killed["shards_in_trouble"]) == ("running", "owner silent", 4)
    printed = programs.printed()
    assert [printed[f"order {n}"] for n in range(100)] + [printed[f"late order {n}"] for n in range(50)] == [
        1
    ] * 150
