"""A sale begins: three times what the only shard accepts in a second comes at once, while a consumer reads."""

from user_programs import CONSUMER, all_records

SALE = """
    from penstock import Producer

    # Each order is a record of its own, for readers that do not know aggregates.
    with Producer(stream="orders", aggregation=False) as producer:
        for number in range(3000):
            producer.put(b"order %d" % number, partition_key=f"customer-{number % 7}")
"""


def test_a_burst_beyond_the_quota_loses_nothing_and_keeps_each_customers_order(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=1)
    consumer = programs.start(CONSUMER, name="consumer")
    sale = programs.start(SALE, name="sale")
    assert sale.wait() == 0, sale.log()
    programs.wait_for_lines(3000)
    assert consumer.terminate() == 0
    assert programs.printed() == {f"order {number}": 1 for number in range(3000)}
    numbers = {}
    for record in all_records(local_kinesis, "orders"):
        numbers.setdefault(record.partition_key, []).append(int(record.data.split()[1]))
    assert numbers == {f"customer-{n}": list(range(n, 3000, 7)) for n in range(7)}
