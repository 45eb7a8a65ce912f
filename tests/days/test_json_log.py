"""A service logs JSON, as its company's logging configuration says, and somebody looks for an error in the evening."""

import json

from user_programs import Orders, once

SERVICE = r"""
    import logging.config

    from penstock import Consumer, Producer

    logging.config.dictConfig({
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "penstock.runtime.json_log.JsonFormatter"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"level": "INFO", "handlers": ["console"]},
    })
    producer = Producer(stream="billed")
    has_failed = []

    def handle(batch):
        for record in batch:
            if record.data == b"order 77" and not has_failed:
                has_failed.append(record)
                raise ValueError("cannot bill\nthe customer «Ümit» \x1b[31m\ud83d")
        for record in batch:
            producer.put(record.data, partition_key=record.partition_key)
            print(record.data.decode() + "\n", end="", flush=True)

    with producer:
        Consumer(stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON").run()
"""


def test_every_line_of_the_log_is_a_document(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    local_kinesis.create_stream("billed", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    service = programs.start(SERVICE, name="service")
    programs.wait_for(orders)
    assert service.terminate() == 0
    assert programs.printed() == once(orders)
    documents = [json.loads(line) for line in service.log().splitlines()]
    assert all({"time", "level", "logger", "thread", "message"} <= set(document) for document in documents)
    failed = [document for document in documents if "exception" in document]
    assert [(document["level"], document["logger"]) for document in failed] == [
        ("WARNING", "penstock.consumer")
    ]
    assert "cannot bill\nthe customer «Ümit»" in failed[0]["exception"]
    assert "\x1b" not in service.log()


def test_a_configuration_that_silences_the_consumer_is_warned_of(local_kinesis, programs):
    local_kinesis.create_stream("orders")
    local_kinesis.create_stream("billed")
    orders = Orders(local_kinesis)
    orders.put(100)
    # Python's default disables the loggers of every package that was imported before.
    service = programs.start(SERVICE.replace('"disable_existing_loggers": False,', ""), name="service")
    programs.wait_for(orders)
    assert service.terminate() == 0
    assert programs.printed() == once(orders)
    assert "disable_existing_loggers" in service.log()
