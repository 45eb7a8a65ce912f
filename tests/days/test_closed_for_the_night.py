"""An application is closed for the night. Meanwhile its stream grows for a sale and shrinks again."""

from collections import defaultdict

from user_programs import CONSUMER, all_records
from waiting import wait_until

ORDERED = CONSUMER.replace(
    "print(record.data.decode()", 'print(record.partition_key + " " + record.data.decode()'
)
CUSTOMERS = 20


def test_an_application_follows_the_reshards_of_the_night(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    client = local_kinesis.client()
    count = 0

    def put(rounds):
        nonlocal count
        for _ in range(rounds):
            records = [
                {"Data": b"%d" % (count + n), "PartitionKey": f"customer-{n}"} for n in range(CUSTOMERS)
            ]
            assert client.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
            count += CUSTOMERS

    def scale(shards):
        scaled = programs.penstock("streams", "scale", "orders", str(shards), "--wait", name="scale")
        assert scaled.wait() == 0, scaled.log()
        programs.started.remove(scaled)

    put(5)
    evening = programs.start(ORDERED, name="evening")
    programs.wait_for_lines(count)
    assert evening.terminate() == 0
    put(5)
    scale(4)
    put(5)
    scale(2)
    put(5)
    morning = programs.start(ORDERED, name="morning")
    programs.wait_for_lines(count)
    put(5)
    programs.wait_for_lines(count)
    assert morning.terminate() == 0
    assert sum(programs.printed().values()) == count == len(all_records(local_kinesis, "orders"))
    seen = defaultdict(list)
    for line in evening.lines() + morning.lines():
        customer, number = line.split()
        seen[customer].append(int(number))
    assert len(seen) == CUSTOMERS
    assert all(numbers == sorted(numbers) for numbers in seen.values())  # each customer's orders in order
    leases = programs.penstock("leases", "billing", "--stream", "orders", name="leases")
    wait_until(lambda: not leases.is_running, "the leases")
    assert "stopped" not in "\n".join(leases.lines())
