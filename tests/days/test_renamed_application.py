"""The service `billing` is called `invoices` from today on, and goes on where it was."""

from user_programs import CONSUMER, Orders, once

RENAMED = CONSUMER.replace(
    'application="billing"', 'application="invoices", connection={"lease_table_name": "billing"}'
)


def test_a_consumer_gets_another_name_and_keeps_its_place(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=3)
    orders = Orders(local_kinesis)
    orders.put(100)
    billing = programs.start(CONSUMER, name="billing")
    orders.put_until(billing.lines, "the first orders")
    invoices = programs.start(RENAMED, name="invoices")  # a rolling deploy: for a while both are at work
    orders.put(100)
    assert billing.terminate() == 0
    orders.put_until(invoices.lines, "the orders of the new name")
    programs.wait_for(orders)
    shown = programs.penstock("leases", "billing", name="leases")
    programs.started.remove(shown)  # it prints no orders
    assert shown.wait() == 0
    assert invoices.terminate() == 0
    assert programs.printed() == once(orders)
    tables = local_kinesis.client("dynamodb").list_tables()["TableNames"]
    assert tables == ["billing"]
