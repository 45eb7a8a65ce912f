"""A queue's consumer on threads, over a queue in memory."""

import contextlib
import logging
import re
import threading
import warnings

import pytest

from few_threads import leave_threads
from penstock import QueueConsumer, Reject
from penstock.core.aggregation import AggregateBuilder
from penstock.errors import AccessDenied, NotFound, OptionError, Throttled, UnknownOutcome, UsageError
from penstock.ports.queues import DeadLetterRule
from penstock.queues import QueueConsumerPorts
from penstock.runtime import consumer_run
from penstock.runtime.metrics_tally import MetricsTally
from queue_world import QueueWorld
from waiting import DEADLINE_S, wait_until


@pytest.fixture
def world():
    return QueueWorld()


def consumer(world, handler=None, **options):
    return QueueConsumer("invoices", handler, ports=world.ports, **{"wait_time_s": 1, **options})


@contextlib.contextmanager
def first_stopped(of):
    yield
    of.stop()


def counters(tally):
    return {
        (name, *(value for _, value in labels)): int(value)
        for (name, labels), value in tally.snapshot().counters.items()
    }


def test_a_team_bills_its_invoices(world):
    """Some succeed, one fails once, one can never succeed: all but that one are billed, and it waits among the dead letters."""
    billed, failed_once = [], set()

    def bill(record):
        text = record.data.decode()
        if text == "torn":
            raise Reject("no amount")
        if text == "i7" and text not in failed_once:
            failed_once.add(text)
            raise ConnectionError("the bank is asleep")
        billed.append(text)

    world.put(*(f"i{n}" for n in range(40)), "torn")
    with consumer(world, bill, concurrency=5, backoff_min_s=1, backoff_max_s=1):
        wait_until(lambda: not world.left, "every record to be billed or dead")
    assert sorted(billed) == sorted(f"i{n}" for n in range(40))
    assert world.dead() == ["torn"]


def test_the_record_has_what_the_service_knows(world):
    (record_id,) = world.put("a", key="customer 7")
    got = []
    with consumer(world, got.append):
        wait_until(lambda: not world.left)
    (record,) = got
    assert (record.data, record.partition_key, record.record_id) == (b"a", "customer 7", record_id)
    assert (record.receive_count, record.sub_sequence_number, record.queue) == (1, 0, "invoices")
    assert record.first_receive_timestamp >= record.approximate_arrival_timestamp


def test_acknowledgements_leave_in_tens(world):
    world.put(*(f"r{n}" for n in range(200)))
    with consumer(world, lambda _: None, concurrency=20, acknowledge_after_s=0.2):
        wait_until(lambda: not world.left)
    assert max(world.service.sizes) == 10
    assert len(world.service.sizes) < 60


def test_a_slow_handler_keeps_its_record(world):
    world.put("slow")
    others = []
    go_on = threading.Event()
    first = consumer(world, lambda _: go_on.wait(60), visibility_timeout_s=1)
    first.start()
    wait_until(lambda: first.health().in_handler == 1)
    with first_stopped(first), consumer(world, others.append, visibility_timeout_s=1):
        wait_until(lambda: world.service.calls["set_visibility"] >= 5, "renewals")
        go_on.set()
        wait_until(lambda: not world.left)
    assert others == []


def test_a_stalled_handler_loses_its_record_to_another_consumer(world):
    world.put("stuck")
    others = []
    go_on = threading.Event()
    tally = MetricsTally()
    first = consumer(
        world,
        lambda _: go_on.wait(90),
        visibility_timeout_s=1,
        handling_time_max_s=1,
        metrics=tally,
        concurrency=1,
    )
    with first:
        wait_until(lambda: first.health().in_handler == 1)
        with consumer(world, others.append):
            wait_until(lambda: others, "the other consumer to get the record")
        (problem,) = first.health().problems
        assert "has not returned for" in problem
        go_on.set()
        wait_until(lambda: first.health().in_hand == 0)
        assert first.health().is_healthy
    assert counters(tally)[("queue_records_ended", "void")] == 1
    assert world.left == []


def test_a_batch_acknowledges_single_records_and_gives_the_others_back(world):
    world.put("a", "b", "c")
    seen = []

    def handle(batch):
        seen.append([record.data.decode() for record in batch])
        for record in batch:
            if record.data == b"b" and record.receive_count == 1:
                raise ValueError("b")
            batch.acknowledge(record)

    with consumer(world, handle, batch_records_max=10, concurrency=1, backoff_min_s=1, backoff_max_s=1):
        wait_until(lambda: not world.left)
    assert seen[0] == ["a", "b", "c"]
    assert sorted(text for batch in seen[1:] for text in batch) == ["b", "c"]


def test_an_aggregate_is_opened_and_acknowledged_once(world):
    builder = AggregateBuilder()
    for n in range(25):
        builder.add(f"u{n}".encode(), f"k{n}")
    entry = builder.build()
    world.service.put(world.stream_arn, entry.data, entry.partition_key)
    got = []
    with consumer(world, got.append, concurrency=4):
        wait_until(lambda: not world.service._queues[world.queue.arn].deliveries)
    assert sorted(record.sub_sequence_number for record in got) == list(range(25))
    assert {record.partition_key for record in got} == {f"k{n}" for n in range(25)}
    assert sum(world.service.sizes) == 1


def test_a_lost_answer_is_counted_and_the_record_is_not_handled_again(world):
    world.put("a")
    handled = []
    world.service.faults["acknowledge"] = [(UnknownOutcome("sent, and no whole answer came"),)]
    tally = MetricsTally()
    with consumer(world, handled.append, metrics=tally):
        wait_until(lambda: ("queue_unknown_outcomes",) in counters(tally))
    assert len(handled) == 1
    assert counters(tally)[("queue_records_ended", "void")] == 1


def test_refused_entries_are_sent_again(world):
    world.put("a", "b")
    world.service.faults["acknowledge"] = ["refuse", "refuse", Throttled("slow down")]
    with consumer(world, lambda _: None):
        wait_until(lambda: not world.left)
    assert world.service.calls["acknowledge"] >= 4


def test_a_stop_gives_back_at_once_and_finishes_what_runs(world):
    world.put(*(f"r{n}" for n in range(30)))
    go_on, begun = threading.Event(), threading.Event()
    done = []

    def handle(record):
        begun.set()
        go_on.wait(60)
        done.append(record.data.decode())

    of = consumer(world, handle, concurrency=2)
    of.start()
    wait_until(lambda: of.health().in_handler == 2)
    of.request_stop()
    go_on.set()
    of.stop()
    assert len(done) == 2
    assert len(world.left) == 28
    assert world.visible == sorted(world.left), "others can go on at once"


def test_a_handler_that_takes_too_long_is_abandoned_at_a_stop(world):
    world.put("endless")
    never = threading.Event()
    of = consumer(world, lambda _: never.wait(90), shutdown_timeout_s=0.5)
    of.start()
    wait_until(lambda: of.health().in_handler == 1)
    of.stop()
    # A long poll that was open at the end may receive the record that was returned; its thread returns it again.
    wait_until(lambda: world.visible == ["endless"], "the record to be visible again")
    never.set()


def test_stop_inside_a_handler_is_refused_and_request_stop_works(world):
    world.put("a")
    raised = []

    def handle(_):
        try:
            of.stop()
        except UsageError as error:
            raised.append(str(error))
            of.request_stop()

    of = consumer(world, handle)
    of.run()
    assert "call request_stop() instead" in raised[0]
    assert world.left == []


class OddTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class OddClassError(Exception):
    @property
    def __class__(self):
        raise RuntimeError("no class")


ODD_ERRORS = {
    "text": OddTextError,
    "class": OddClassError,
    "exit": lambda: SystemExit(3),
    "generator": GeneratorExit,
    "stop": StopIteration,
    "surrogate": lambda: Exception("\ud800"),
}


@pytest.mark.parametrize("kind", ODD_ERRORS)
def test_whatever_a_handler_raises_the_record_comes_again(world, kind):
    world.put("a")
    seen = []

    def handle(record):
        seen.append(record.receive_count)
        if len(seen) == 1:
            odd = ODD_ERRORS[kind]()
            raise odd

    with consumer(world, handle, backoff_min_s=1, backoff_max_s=1):
        wait_until(lambda: not world.left)
    assert seen == [1, 2]


def test_records_are_pulled_and_the_loop_may_be_left(world):
    world.put("a", "b", "c")
    taken = []
    for record in consumer(world, concurrency=1):
        taken.append(record.data.decode())
        if len(taken) == 2:
            break
    assert len(world.left) == 2, "the one in whose body the loop was left is given back"
    assert world.visible == sorted(world.left)


def test_a_second_loop_over_a_consumer_is_refused(world):
    world.put("a", "b")
    of = consumer(world, concurrency=1)
    for _ in of:
        break
    with pytest.raises(UsageError, match="a loop over this consumer has ended before"):
        next(iter(of))


def test_a_second_loop_over_a_consumer_that_failed_raises_the_failure_again(world):
    world.service.faults["receive"] = [AccessDenied("no receives")]
    of = consumer(world)
    for _ in range(2):
        with pytest.raises(AccessDenied, match="no receives"):
            next(iter(of))


def test_the_warning_at_exit_is_of_the_queues_logger_and_names_the_worker(world, caplog):
    of = consumer(world, print)
    of.start()
    consumer_run._warn_at_exit()
    of.stop()
    warned = [record for record in caplog.records if "the program ends while" in record.getMessage()]
    assert [record.name for record in warned] == ["penstock.queues"]
    assert f"worker {of.worker_id} of queue {of.queue}" in warned[0].getMessage()


def test_remembered_records_are_not_handled_twice(world):
    world.put("a")
    handled = []
    lost = [UnknownOutcome("no answer")] * 500
    world.service.faults["acknowledge"] = list(lost)
    with consumer(world, handled.append, visibility_timeout_s=1, remember=10):
        wait_until(lambda: world.service.calls["receive"] > 6)
        world.service.faults["acknowledge"] = []
        wait_until(lambda: not world.left)
    assert len(handled) == 1


class Memory:
    def __init__(self, *ids):
        self.ids = set(ids)

    def fetch_finished(self, record_ids):
        return self.ids & set(record_ids)

    def put_finished(self, record_ids):
        self.ids |= set(record_ids)


def test_a_durable_memory_is_asked_before_and_filled_before_the_acknowledgement(world):
    known, new = world.put("known", "new")
    memory, handled = Memory(known), []
    with consumer(world, lambda record: handled.append(record.data), finished=memory):
        wait_until(lambda: not world.left)
    assert handled == [b"new"]
    assert memory.ids == {known, new}


class Broken:
    """Metrics, or a memory of finished records, that fail."""

    def __init__(self, error):
        self.error = error

    def count(self, *_):
        raise self.error

    gauge = observe = fetch_finished = put_finished = count


def test_metrics_that_raise_stop_no_consumer(world, caplog):
    world.put("a", "b")
    metrics = Broken(ConnectionError("no metrics today"))
    with consumer(world, lambda _: None, metrics=metrics, metrics_interval_s=0.1) as of:
        wait_until(lambda: not world.left)
        assert of.health().is_healthy
    assert "no metrics today" in caplog.text


@pytest.mark.parametrize("error", [ConnectionError("asleep"), SystemExit(3), GeneratorExit(), OddTextError()])
def test_whatever_a_durable_memory_raises_the_records_are_handled(world, error, caplog):
    world.put("a", "b")
    handled = []
    with consumer(world, lambda record: handled.append(record.data), finished=Broken(error)):
        wait_until(lambda: not world.left)
    assert sorted(handled) == [b"a", b"b"]
    assert "the memory of finished records failed" in caplog.text


def test_a_consumer_without_its_logger_warns(world, monkeypatch):
    monkeypatch.setattr(logging.getLogger("penstock.queues"), "disabled", True)
    with pytest.warns(
        RuntimeWarning, match="penstock.queues is disabled, so the log will not say which records"
    ) as caught:
        of = consumer(world, lambda _: None)
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings(), of:
        warnings.simplefilter("error")


def test_a_deleted_queue_ends_the_consumer(world):
    of = consumer(world, lambda _: None)
    of.start()
    wait_until(lambda: of.health().is_ready)
    world.service.delete_queue(world.queue.arn)
    wait_until(lambda: not of.is_running)
    with pytest.raises(NotFound):
        of.stop()
    assert not of.health().is_healthy


def test_forbidden_acknowledgements_end_the_consumer(world):
    world.put("a")
    world.service.faults["acknowledge"] = [AccessDenied("not allowed")]
    with pytest.raises(AccessDenied):
        consumer(world, lambda _: None).run()


def test_throttled_receives_are_repeated_and_shown(world):
    world.service.faults["receive"] = [Throttled("slow down")] * 4
    world.put("a")
    of = consumer(world, lambda _: None)
    with of:
        wait_until(lambda: any("slow down" in problem for problem in of.health().problems))
        wait_until(lambda: not world.left)
        wait_until(lambda: of.health().is_healthy)


@pytest.mark.parametrize(
    ("call", "name"), [("acknowledge", "acknowledgements"), ("set_visibility", "changes of visibility")]
)
def test_throttled_calls_about_records_are_repeated_and_shown(world, call, name, caplog):
    failed = []

    def handle(record):
        is_returned = call == "set_visibility" or record.data == b"failing"
        if is_returned and world.service.faults[call]:
            failed.append(record)
            raise ValueError("not today")

    world.service.faults[call] = [Throttled("slow down")] * 1000
    world.put("a", "failing")  # the calls of the other kind succeed meanwhile
    with consumer(world, handle, backoff_min_s=1, backoff_max_s=1) as of:
        wait_until(lambda: f"{name} keep failing: Throttled: slow down" in of.health().problems)
        if call == "acknowledge":  # then the records that the handler failed are visible again soon
            wait_until(lambda: len(failed) >= 3)
        assert [each.levelname for each in caplog.records if "a call (" in each.message] == ["WARNING"]
        with world.service.lock:
            world.service.faults[call] = []
        wait_until(lambda: not world.left)
        wait_until(lambda: of.health().is_healthy)


def test_calls_that_failed_long_ago_without_another_since_are_no_problem(world):
    is_handled, goes_on = threading.Event(), threading.Event()

    def handle(_):
        is_handled.set()
        goes_on.wait(60)

    world.put("a")
    with consumer(world, handle, visibility_timeout_s=3600) as of:  # nothing is renewed
        assert is_handled.wait(60)
        loop = of._running
        now_s = world.service._clock.monotonic_s()
        for failed_s in (now_s, now_s - 61):
            loop._failed_calls["visibility"] = (3, failed_s, "slow down")
            is_problem = failed_s == now_s
            wait_until(lambda is_problem=is_problem: of.health().is_healthy != is_problem)
        goes_on.set()


def test_create_makes_the_queue_once(world):
    create = {"stream": world.stream_arn, "starting_position": "TRIM_HORIZON", "max_receive_count": None}
    world.put("a")
    for _ in range(2):
        got = []
        with QueueConsumer("new", got.append, create=create, ports=world.ports, wait_time_s=1) as of:
            wait_until(lambda: of.health().is_ready)
    assert [each.name for each in world.service.list_queues()] == ["invoices", "new"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"concurency": 3}, "did you mean concurrency?"),
        ({"concurrency": 0}, "concurrency=0: expected 1 to 120,000"),
        ({"visibility_timeout_s": 50_000}, "visibility_timeout_s=50000: expected 1 to 43,200"),
        ({"create": {"stream": "orders", "start": "LATEST"}}, "unknown field of create start"),
        ({"create": {"stream": "orders", "starting_position": "NEWEST"}}, "expected LATEST, TRIM_HORIZON or"),
    ],
)
def test_wrong_options_are_refused(world, arguments, text):
    with pytest.raises(OptionError, match=re.escape(text)):
        QueueConsumer("invoices", lambda _: None, ports=world.ports, **arguments)


def test_an_unknown_queue_is_refused_with_those_that_there_are(world):
    with pytest.raises(
        NotFound, match=r"there is no queue invoice in this account and region \(there are: invoices\)"
    ):
        QueueConsumer("invoice", lambda _: None, ports=world.ports).run()


async def coroutine(_): ...


def test_a_coroutine_function_is_refused(world):
    with pytest.raises(UsageError, match=r"use penstock\.AsyncQueueConsumer"):
        consumer(world, coroutine)
    world.put("a")
    with pytest.raises(UsageError, match=r"use penstock\.AsyncQueueConsumer"):
        consumer(world, lambda record: [coroutine(record)][0]).run()
    assert world.visible == ["a"]


def test_a_record_that_an_open_receive_takes_during_a_stop_is_given_back(world):
    handled = []
    of = consumer(world, handled.append, wait_time_s=5)
    of.start()
    wait_until(lambda: of.health().last_answer_age_s is not None and of.health().receives_open == 1)
    wait_until(lambda: world.service.calls["receive"] == 2)  # the open one has begun
    of.request_stop()
    wait_until(lambda: not of.health().is_ready)
    world.put("late")
    of.stop()
    assert handled == []
    assert world.service.calls["receive"] == 2, "no receive begins during a stop"
    assert world.visible == ["late"], "the receive took it, and others can go on at once"


def test_a_stop_does_not_receive_the_records_again_that_it_returns(world, monkeypatch):
    """An open receive would take them at once, and each delivery counts towards the dead letters."""
    # A handler of 0.25 s, as a busy machine can make it, would have too few records fetched ahead.
    monkeypatch.setattr("penstock.core.queueing.queue_delivery._PREFETCH_S", DEADLINE_S)
    world.service.poll_s = 0.3
    go_on, began = threading.Event(), threading.Event()

    def handle(record):
        if record.data == b"slow":
            began.set()
            go_on.wait(60)

    of = consumer(world, handle, concurrency=1)
    of.start()
    world.put("quick")  # after the first record further ones are fetched ahead
    wait_until(lambda: not world.left)
    world.put("slow")
    assert began.wait(60)
    world.put("a", "b")
    wait_until(lambda: of.health().in_hand == 3 and of.health().receives_open == 1)
    of.request_stop()
    go_on.set()
    of.stop()
    assert world.visible == ["a", "b"]
    again = world.service.receive(world.queue.arn, 10, 0, 30)
    assert [each.receive_count for each in again] == [2, 2]


def test_receives_that_wait_for_a_thread_do_not_begin_during_a_stop(world, monkeypatch):
    leave_threads(monkeypatch, 1, "penstock-queue-receive")
    world.service.poll_s = 0.3
    world.put(*(f"r{n}" for n in range(200)))  # full answers open more receives
    of = consumer(world, lambda _: None, concurrency=50)
    of.start()
    wait_until(lambda: not world.left and of.health().receives_open > 1)
    of.request_stop()
    wait_until(lambda: not of.health().is_ready)
    calls = world.service.calls["receive"]
    of.stop()
    assert world.service.calls["receive"] == calls


class Chance:
    """Back-offs near their upper bound."""

    def random(self):
        return 0.9


def test_records_in_flight_are_reported_before_the_limit_of_the_queue(world, monkeypatch, caplog):
    monkeypatch.setattr("penstock.queues.queue_loop._IN_FLIGHT_HIGH", 3)
    world.put("a", "b", "c")
    world.ports = QueueConsumerPorts(world.service, chance=Chance())

    def fail(_):
        raise ValueError

    with consumer(world, fail, backoff_min_s=300, metrics_interval_s=0.1) as of:
        wait_until(lambda: any("records are in flight" in problem for problem in of.health().problems))
        assert of.health().in_flight == 3
        wait_until(lambda: "3 records are in flight by this consumer alone" in caplog.text)
    assert "the service delivers nothing above 120,000" in caplog.text


@pytest.mark.parametrize("queue", ["", None, 7, b"invoices"])
def test_what_is_no_name_of_a_queue_is_refused_when_the_consumer_is_made(queue):
    with pytest.raises(UsageError, match="expected its name or its ARN"):
        QueueConsumer(queue, print)


def test_several_threads_iterate_from_the_beginning(world):
    world.put(*(f"r{n}" for n in range(40)))
    of, taken, failures = consumer(world), [], []
    begin = threading.Barrier(3)

    def iterate():
        begin.wait(60)
        try:
            for record in of:
                taken.append(record.data.decode())
                if len(taken) == 40:
                    of.request_stop()
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    threads = [threading.Thread(target=iterate, daemon=True) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(90)
    assert failures == []
    assert sorted(taken) == sorted(f"r{n}" for n in range(40))
    assert world.left == []


@pytest.mark.parametrize("failure", [ValueError, Reject])
def test_a_queue_whose_dead_letters_are_switched_off_under_way_is_not_asked_in_a_circle(world, failure):
    world = QueueWorld(receive_count_max=2)
    world.put("never")
    seen = []

    def handle(record):
        if not seen:
            world.service.update_queue(world.queue.arn, dead_letters=DeadLetterRule(None))
        seen.append(record.receive_count)
        raise failure

    with consumer(world, handle, backoff_min_s=1, backoff_max_s=1):
        wait_until(lambda: len(world.service.seconds) >= 3, "three returns")
    first, second, third, *_ = world.service.seconds
    assert (second, third) == (0, 1), "at once at its last receive, and then after a back-off"
    assert first == (1 if failure is ValueError else 0)
    assert world.left == ["never"]


def test_a_memory_that_fails_slowly_is_left_alone_for_a_while(world):
    """Its calls are made on the threads of the acknowledgements: these would pile up until visibility timeouts end."""
    world.put(*(f"r{n}" for n in range(300)))
    calls = []

    class Away:
        def fetch_finished(self, record_ids):
            return self.put_finished(record_ids)

        def put_finished(self, record_ids):
            calls.append(record_ids)
            threading.Event().wait(1.1)
            raise TimeoutError("no answer")

    handled, tally = [], MetricsTally()
    with consumer(world, handled.append, finished=Away(), metrics=tally, receives_max=2):
        wait_until(lambda: not world.left)
    assert len(handled) == 300
    assert len(calls) <= 10, "those that were under way when the first one failed, and one after each pause"
    assert counters(tally)[("queue_memory_failures",)] > len(calls), "calls that are left out are counted too"


def test_slow_acknowledgements_do_not_pile_up_until_visibility_timeouts_end(world):
    world.put(*(f"r{n}" for n in range(300)))
    handled, acknowledge = [], world.service.acknowledge

    def slow_acknowledge(*arguments, **more):
        threading.Event().wait(0.7)
        return acknowledge(*arguments, **more)

    world.service.acknowledge = slow_acknowledge
    with consumer(world, handled.append, visibility_timeout_s=4):
        wait_until(lambda: not world.left)
    assert len(handled) == 300
