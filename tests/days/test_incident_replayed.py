"""On call: a handler failed on one record of yesterday. Record the stream, replay it, mend the handler, replay it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("httptools")
pytest.importorskip("pyarrow")

from penstock import Consumer, ConsumerOptions, testing
from penstock.cli import main as cli
from penstock.errors import HandlerFailed, ShardsStopped
from penstock_local import LocalKinesis

YESTERDAY_S = 20 * 3600


def total_of(record):
    """The code that failed: it takes for granted that an order has a price."""
    order = json.loads(record.data)
    return order["count"] * order["price"]


def mended_total_of(record):
    order = json.loads(record.data)
    return order["count"] * order.get("price", 0)


def handler_of(total, totals):
    def handle(batch):
        totals.extend(total(record) for record in batch)

    return handle


def run_consumer(server, application, handler):
    consumer = Consumer(
        "orders",
        application,
        handler,
        options=ConsumerOptions(
            starting_position="TRIM_HORIZON", max_records=1, handler_retries_max=0, cold_start_jitter_s=0.0
        ),
        connection=server.connection(),
    )
    with pytest.raises(ShardsStopped) as stopped:
        consumer.run()
    return stopped.value


def put_orders(production):
    """Twenty orders, of which number 13 has no price."""
    client = production.client("kinesis")
    production.create_stream("orders", 1)
    for number in range(20):
        order = {"order": number, "count": 2, "price": 5} if number != 13 else {"order": 13, "count": 2}
        client.put_record(StreamName="orders", Data=json.dumps(order), PartitionKey=f"customer-{number}")


def test_a_consumer_goes_on_beside_the_replay_where_it_stood(tmp_path, monkeypatch, capsys, penstock_replay):
    path, backup = tmp_path / "incident.penstock", tmp_path / "billing.json"
    with LocalKinesis() as production:
        put_orders(production)
        run_consumer(production, "billing", handler_of(total_of, []))
        for name, value in production.environ().items():
            monkeypatch.setenv(name, value)
        assert cli.main(["record", "orders", "--since", "1h", "-o", str(path)]) == 0
        assert cli.main(["leases", "billing", "--backup", str(backup)]) == 0
        assert f"backup of 1 lease: {backup}" in capsys.readouterr().out
    penstock_replay(path)
    assert cli.main(["leases", "billing", "--restore", str(backup), "--create"]) == 0
    seen = []
    with Consumer("orders", "billing", options=ConsumerOptions(cold_start_jitter_s=0.0)) as records:
        for batch in records:
            seen += [json.loads(record.data)["order"] for record in batch]
            batch.acknowledge()
            if seen[-1] == 19:
                break
    assert seen == list(range(13, 20))


def test_a_handler_fails_on_one_record_of_yesterday(tmp_path, monkeypatch, penstock_replay):
    path = tmp_path / "incident.penstock"
    with LocalKinesis() as production:
        put_orders(production)
        production.clock.advance(YESTERDAY_S)
        stopped = run_consumer(production, "billing", handler_of(total_of, []))
        assert "'price'" in str(stopped)
        for name, value in production.environ().items():
            monkeypatch.setenv(name, value)
        assert cli.main(["record", "orders", "--since", "1d", "-o", str(path)]) == 0

    # the same verdict at the desk, and the record that caused it
    replayed = testing.replay(handler_of(total_of, []), path, max_records=1, may_fail=True)
    assert [json.loads(each.record.data)["order"] for each in replayed.failed] == [13]
    assert isinstance(replayed.failed[0].error, KeyError)
    with pytest.raises(HandlerFailed):
        testing.replay(handler_of(total_of, []), path)

    # and in a server, with the consumer itself
    server = penstock_replay(path)
    assert "'price'" in str(run_consumer(server, "billing", handler_of(total_of, [])))

    totals = []
    assert testing.replay(handler_of(mended_total_of, totals), path).is_green
    assert sum(totals) == 190
