"""An argument of another kind than it should be is refused where it is given, by its name; a secret is not shown."""

import functools
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock import (
    AsyncConsumer,
    AsyncProducer,
    AsyncQueueConsumer,
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
from penstock.errors import OptionError, UsageError


class Handlers:
    """Handlers of a program: an object's method is one, the class and its function are none."""

    def handle(self, batch):
        """Handle nothing."""


class Proxied:
    """A proxy whose object is not there yet, or a function whose annotations cannot be evaluated (Python 3.14)."""

    @property
    def __signature__(self):
        raise NameError("name 'Batch' is not defined")

    def __call__(self, batch):
        """Handle nothing."""


def with_session(handle):
    """Return a handler that passes a further argument on, as a decorator of the program may."""

    @functools.wraps(handle)
    def call(*arguments):
        return handle("session", *arguments)

    return call


async def made_later():
    """Return a processor, but only when it is awaited."""


def consumer(**given):
    return Consumer(**{"stream": "orders", "application": "billing", "handler": print, **given})


def queue_consumer(**given):
    return QueueConsumer("invoices", print, **given)


def async_consumer(**given):
    return AsyncConsumer("orders", "billing", **given)


def creation(**given):
    return queue_consumer(create={"stream": "orders", **given})


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (consumer, {"application": b"billing"}, "application=b'billing': expected a name"),
        (consumer, {"worker_id": 5}, "worker_id: expected a text, not int"),
        (consumer, {"policy": ["even"]}, r"policy=\['even'\]: expected 'even', "),
        (consumer, {"options": {"max_records": 5}}, "options is of type dict: give a value of the options' class"),
        (consumer, {"connection": "eu-west-1"}, "connection is of type str: expected its fields"),
        (Producer, {"stream": "orders", "region": 5}, "region: expected a text, not int"),
        (Producer, {"stream": "orders", "endpoint_url": 5}, "endpoint_url: expected a text, not int"),
        (queue_consumer, {"create": "orders"}, "create='orders': expected a QueueCreation or its fields"),
        (queue_consumer, {"finished": "table"}, "finished.fetch_finished='table' cannot be called"),
        (consumer, {"handler": lambda: None}, r"handler=<.*> is called with 1 argument, and takes \(\): too many"),
        (consumer, {"handler": Handlers.handle}, r"handler=<.*> is called with 1 argument, and takes \(self, batch\): missing"),
        (consumer, {"handler": Handlers}, r"handler=<.*> is called with 1 argument, and takes \(\): too many"),
        (
            consumer,
            {"dead_letter": lambda batch: None, "on_failure": "dead_letter"},
            r"dead_letter=<.*> is called with 2 arguments, and takes \(batch\): too many",
        ),
        (
            consumer,
            {"handler": None, "processor_factory": lambda stream: None},
            r"processor_factory=<.*> is called with no arguments, and takes \(stream\): missing",
        ),
        (
            consumer,
            {"handler": None, "processor_factory": lambda: None, "stream": ["orders"]},
            r"processor_factory=<.*> is called with 1 argument, and takes \(\): too many",
        ),
        (async_consumer, {"handler": lambda: None}, r"handler=<.*> is called with 1 argument, and takes \(\): too many"),
        (
            async_consumer,
            {"processor_factory": lambda stream: None},
            r"processor_factory=<.*> is called with no arguments, and takes \(stream\): missing",
        ),
        (consumer, {"handler": None, "processor_factory": made_later}, "processor_factory is a coroutine function"),
        (async_consumer, {"processor_factory": made_later}, "processor_factory is a coroutine function"),
        (QueueConsumer, {"queue": "invoices", "handler": lambda: None}, r"is called with 1 argument, and takes \(\)"),
        (AsyncQueueConsumer, {"queue": "invoices", "handler": lambda: None}, r"is called with 1 argument, and takes \(\)"),
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


def test_a_folder_of_leases_is_named_by_a_text(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(
        OptionError, match=r"lease_table_name=PosixPath\('/leases'\): expected a text; for a folder file:///"
    ):
        consumer(connection={"lease_table_name": Path("/leases")}).start()


@pytest.mark.parametrize(
    "handler",
    [
        Handlers().handle,
        functools.partial(Handlers.handle, Handlers()),
        with_session(lambda session, batch: None),
        lambda batch, session=None: None,
        lambda *arguments: None,
        [].append,
        Mock(),
        Proxied(),
    ],
)
def test_whatever_can_be_called_with_a_batch_is_a_handler(handler):
    assert not consumer(handler=handler).is_running


class Billing(AsyncConsumer):
    """A program's own class."""


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        (Billing("orders", "billing", print).start, "penstock.Consumer"),
        (AsyncQueueConsumer("invoices", print).start, "penstock.QueueConsumer"),
        (lambda: AsyncProducer(Producer("orders")).put(b"1", "anna"), "penstock.Producer"),
    ],
)
def test_an_event_loop_other_than_asyncios_is_named(call, plain):
    with pytest.raises(UsageError, match=f"works on an event loop of asyncio .* use {plain} on a thread"):
        call().send(None)  # as trio begins a task
