"""The orders since noon were billed at a wrong price: they are processed again, and only they."""

from datetime import UTC, datetime

from user_programs import CONSUMER, Orders, once


def test_orders_since_a_moment_are_processed_again(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    wrong = programs.start(CONSUMER, name="wrong")
    orders.put(100)
    programs.wait_for(orders)
    local_kinesis.clock.advance(2)  # noon is between two orders, on any machine
    noon = datetime.fromtimestamp(local_kinesis.clock.now_ms() / 1000, UTC)
    local_kinesis.clock.advance(2)
    orders.put(50)
    programs.wait_for(orders)
    moment = f"AT_TIMESTAMP:{noon.isoformat()}"
    refused = programs.penstock(
        "leases", "billing", "--stream", "orders", "--reset-to", moment, name="refused"
    )
    assert refused.wait() == 1  # while the worker lives
    programs.started.remove(refused)
    assert wrong.terminate() == 0
    reset = programs.penstock("leases", "billing", "--stream", "orders", "--reset-to", moment, name="reset")
    assert reset.wait() == 0, reset.log()
    programs.started.remove(reset)
    assert programs.printed() == once(orders)
    right = programs.start(CONSUMER, name="right")
    orders.put(50)
    programs.wait_for(orders)
    assert right.terminate() == 0
    assert sorted(right.lines()) == sorted(orders.texts[100:])
