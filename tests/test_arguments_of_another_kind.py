"""An argument of another kind than it should be is refused where it is given, by its name; a secret is not shown."""

import pytest

from penstock import (
    Autoscaler,
    Consumer,
    DeadLetterBucket,
    DeadLetterQueue,
    DeadLetterStream,
    FinishedRecordsTable,
    Producer,
    QueueConsumer,
)
from penstock.core.keyword_options import merge_connection
from penstock.errors import UsageError


def consumer(**given):
    return Consumer(**{"stream": "orders", "application": "billing", "handler": print, **given})


def queue_consumer(**given):
    return QueueConsumer("invoices", print, **given)


def creation(**given):
    return queue_consumer(create={"stream": "orders", **given})


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (consumer, {"application": b"billing"}, "application=b'billing': expected a name"),
        (consumer, {"worker_id": 5}, "worker_id: expected a text, not int"),
        (consumer, {"policy": ["even"]}, r"policy=\['even'\]: expected one of"),
        (consumer, {"options": {"max_records": 5}}, "options is of type dict: give a value of the options' class"),
        (consumer, {"connection": "eu-west-1"}, "connection is of type str: expected its fields"),
        (Producer, {"stream": "orders", "region": 5}, "region: expected a text, not int"),
        (Producer, {"stream": "orders", "endpoint_url": 5}, "endpoint_url: expected a text, not int"),
        (queue_consumer, {"create": "orders"}, "create='orders': expected a QueueCreation or its fields"),
        (queue_consumer, {"finished": "table"}, "finished.fetch_finished='table' cannot be called"),
        (creation, {"stream": 5}, "stream: expected a text, not int"),
        (creation, {"starting_position": None}, "starting_position=None: expected a text or a datetime"),
        (creation, {"tags": {"team": 5}}, "tags={'team': 5}: expected texts by name"),
        (FinishedRecordsTable, {"table": "t", "queue": "q", "keep_s": "1d"}, "keep_s=1d: expected more than 0"),
        (FinishedRecordsTable, {"table": 5, "queue": "q"}, "table=5, queue='q': both must be named"),
        (DeadLetterStream, {"stream": None}, "stream=None: expected a text"),
        (DeadLetterBucket, {"bucket": ""}, "bucket='': expected a text"),
        (DeadLetterQueue, {"queue_url": 5}, "queue_url=5: expected a text"),
        (Autoscaler, {"stream": 5, "shards_min": 1, "shards_max": 2}, "stream=5: expected a name or ARN"),
        (
            Autoscaler,
            {"stream": "orders", "shards_min": 1, "shards_max": 2, "connection": "eu-west-1"},
            "connection is of type str: expected its fields",
        ),
        (Autoscaler, {"stream": "orders", "shards_min": "1", "shards_max": 2}, "shards_min='1': expected a whole number"),
    ],
)  # fmt: skip
def test_it_is_named(make, given, message):
    with pytest.raises(UsageError, match=message):
        make(**given)


def test_a_secret_is_not_shown():
    for given in ({"secret_access_key": b"hidden", "access_key_id": "AK"}, {"session_token": b"hidden"}):
        with pytest.raises(UsageError, match="expected a text, not bytes") as caught:
            Producer("orders", connection=given)
        assert "hidden" not in str(caught.value)
    with pytest.raises(UsageError, match="connection is of type str") as caught:
        merge_connection("hidden")
    assert "hidden" not in str(caught.value)


def test_a_queue_may_be_created_with_none_for_its_tags():
    assert creation(tags=None)._creation.tags is None
