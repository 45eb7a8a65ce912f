"""What travels between processes: records, options and errors do; consumers and batches say what to send in their place."""

import copy
import inspect
import pickle

import pytest

from penstock import (
    AsyncConsumer,
    AsyncQueueConsumer,
    Consumer,
    ConsumerOptions,
    QueueConsumer,
    QueueConsumerOptions,
    errors,
    testing,
)
from penstock.queues.queue_records import QueueBatch

ERRORS = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, Exception)]


def copied(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_of_a_pools_process_arrives_with_its_fields_and_notes(kind):
    error = kind("no room")
    if isinstance(error, errors.ServiceError):
        error = kind("no room", operation="PutRecords", code="X", resource="orders")
    error.add_note("in the evening")
    found = copied(error)
    assert (type(found), str(found), vars(found)) == (kind, "no room", vars(error))


def test_records_and_options_arrive():
    made = testing.records("a", "b") + testing.aggregate("c", "d")
    assert copied(list(made)) == list(made)
    for options in (ConsumerOptions(max_records=5), QueueConsumerOptions(concurrency=5)):
        assert copied(options) == options


@pytest.mark.parametrize(
    "make",
    [
        lambda: testing.batch(testing.records("a", "b")),
        lambda: testing.async_batch(testing.records("a", "b")),
        lambda: QueueBatch(testing.records("a", "b"), print),
        lambda: Consumer("orders", "billing", print),
    ],
)
def test_a_shallow_copy_shares_everything(make):
    made = make()
    found = copy.copy(made)
    assert found is not made
    assert (type(found), vars(found)) == (type(made), vars(made))


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (
            lambda: Consumer("orders", "billing", print),
            "make one in the function that the other process runs",
        ),
        (lambda: AsyncConsumer("orders", "billing", print), "make one in the function"),
        (lambda: QueueConsumer("invoices", print), "make one in the function"),
        (lambda: AsyncQueueConsumer("invoices", print), "make one in the function"),
        (lambda: testing.batch(testing.records("a")), r"send its records, list\(batch\)"),
        (lambda: testing.async_batch(testing.records("a")), r"send its records, list\(batch\)"),
        (lambda: QueueBatch((), print), r"send its records, list\(batch\)"),
    ],
)
def test_an_object_of_one_process_names_what_to_send(make, remedy):
    made = make()
    with pytest.raises(
        TypeError,
        match=f"{type(made).__name__} works in the process that made it and cannot be pickled: {remedy}",
    ):
        pickle.dumps(made)
