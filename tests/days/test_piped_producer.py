"""A file of orders is piped into a script of one page, which puts each line."""

import subprocess

from user_programs import all_records

LOAD = """
    import sys

    from penstock import Producer

    with Producer(stream="orders") as producer:
        for line in sys.stdin:
            customer, _, order = line.rstrip("\\n").partition(",")
            producer.put(order.encode(), partition_key=customer)
    print("done")
"""


def test_a_file_is_piped_into_a_producer_script(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = tmp_path / "orders.csv"
    orders.write_text("".join(f"c{n % 50},order {n}\n" for n in range(5_000)), encoding="utf-8")
    with orders.open("rb") as piped:
        load = programs.start(LOAD, name="load", stdin=piped)
    assert (load.wait(), load.lines(), load.log()) == (0, ["done"], "")
    found = all_records(local_kinesis, "orders")
    assert sorted(int(record.data.split()[1]) for record in found) == list(range(5_000))
    for customer in range(50):  # and each customer's orders are in order
        mine = [int(record.data.split()[1]) for record in found if record.partition_key == f"c{customer}"]
        assert mine == sorted(mine)


def test_the_command_in_front_of_the_pipe_ends_early(local_kinesis, programs):
    local_kinesis.create_stream("orders")
    load = programs.start(LOAD, name="load", stdin=subprocess.PIPE)
    load.process.stdin.write(b"c1,order 0\nc1,order 1\nc1,ord")
    load.process.stdin.close()
    assert (load.wait(), load.log()) == (0, "")
    assert [record.data for record in all_records(local_kinesis, "orders")] == [
        b"order 0",
        b"order 1",
        b"ord",
    ]
