"""Processes end in odd ways with records that wait: from a hook at exit, below a thread, through a signal that is swallowed."""

import pytest

from user_programs import all_records

GOODBYE = """
    import atexit

    from penstock import Producer

    def say_goodbye():
        producer = Producer(stream="events")
        for number in range(11):
            producer.put(b"%d" % number, "k")

    atexit.register(say_goodbye)
"""


def test_a_program_logs_its_end_in_a_hook(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(GOODBYE, name="server")
    assert program.wait() == 0, program.log()
    assert numbers(local_kinesis) == list(range(11))


THREAD_BEHIND = """
    import multiprocessing, threading, time
    import multiprocessing.util

    from penstock import Producer
    from penstock.errors import UsageError

    def put_late(producer):
        while not multiprocessing.util.is_exiting():
            time.sleep(0.01)
        try:
            producer.put(b"0", "k")
        except UsageError as error:
            print(error, flush=True)
        with Producer(stream="events") as block:
            block.put(b"1", "k")

    def work():
        threading.Thread(target=put_late, args=(Producer(stream="events"),)).start()

    if __name__ == "__main__":
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
"""


def test_a_thread_outlasts_the_work_of_its_process(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(THREAD_BEHIND, name="worker")
    assert program.wait() == 0, program.log()
    assert "this process is ending" in program.lines()[0], program.log()
    assert numbers(local_kinesis) == [1]


TERMINATES_ITS_WORK = """
    if __name__ == "__main__":
        processes = multiprocessing.get_context("fork")
        has_put = processes.Event()
        process = processes.Process(target=work, args=(has_put,))
        process.start()
        has_put.wait()
        process.terminate()
        process.join()
        sys.exit(process.exitcode)
"""


NEVER_GIVES_UP = """
    import multiprocessing, sys, time

    from penstock import Producer

    def work(has_put):
        producer = Producer(stream="events")
        for number in range(11):
            producer.put(b"%d" % number, "k")
        has_put.set()
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass  # whatever happens, the work goes on
"""


def test_a_process_that_goes_on_after_its_termination_is_ended(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(NEVER_GIVES_UP + TERMINATES_ITS_WORK, name="worker")
    assert program.wait() == 143, program.log()
    assert numbers(local_kinesis) == list(range(11))


TERMINATED_IN_ITS_BLOCK = """
    import multiprocessing, signal, sys, time

    from penstock import Producer

    def work(has_put):
        with Producer(stream="events") as producer:
            if sys.argv[1] == "handler before it":
                before = signal.getsignal(signal.SIGTERM)
                signal.signal(signal.SIGTERM, lambda *arguments: before(*arguments))
            for number in range(11):
                producer.put(b"%d" % number, "k")
            if sys.argv[1] == "closing":
                sys.argv[1] = ""
                flush = producer._flush
                producer._flush = lambda *_, **__: (has_put.set(), flush(*_, **__))
            else:
                has_put.set()
                while True:  # a signal just before one long sleep would be handled after it
                    time.sleep(0.1)
        time.sleep(600)
"""


@pytest.mark.parametrize("when", ["closing", "handler before it"])
def test_a_process_is_terminated_in_its_block(local_kinesis, programs, when):
    local_kinesis.create_stream("events", shards=1)
    if when == "closing":
        local_kinesis.faults.throttle("PutRecords", count=3)
    program = programs.start(TERMINATED_IN_ITS_BLOCK + TERMINATES_ITS_WORK, when, name="worker")
    assert program.wait() == 143, program.log()
    assert numbers(local_kinesis) == list(range(11))


WAITS_FOR_WORK = """
    import multiprocessing, signal, sys, threading, time

    from penstock import Producer

    def work(queue):
        producer = Producer(stream="events")
        for number in range(11):
            producer.put(b"%d" % number, "k")
        # As the kernel may: the signal comes to another thread, while the main one waits for work.
        hit = threading.Thread(
            target=lambda: (time.sleep(0.5), signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        )
        hit.start()
        queue.get()

    if __name__ == "__main__":
        processes = multiprocessing.get_context("fork")
        process = processes.Process(target=work, args=(processes.SimpleQueue(),))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


def test_a_process_that_waits_for_work_is_terminated_on_another_thread(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(WAITS_FOR_WORK, name="worker")
    assert program.wait() == 143, program.log()
    assert numbers(local_kinesis) == list(range(11))


TERMINATES_ITS_OWN = """
    import multiprocessing, sys, time

    from penstock import Producer

    processes = multiprocessing.get_context("fork")

    def put(count):
        global producer
        producer = Producer(stream="events")
        for number in range(count):
            producer.put(b"%d" % number, "k")
        return producer

    def nap(has_begun):
        put(5)
        has_begun.set()
        time.sleep(600)

    def work():
        first = put(5)
        has_begun = processes.Event()
        helper = processes.Process(target=nap, args=(has_begun,))
        helper.start()
        has_begun.wait()
        helper.terminate()
        helper.join()
        time.sleep(1)  # a signal that came here by mistake would be seen by now
        for number in range(5, 11):
            first.put(b"%d" % number, "k")
        sys.exit(0 if helper.exitcode == 143 else 1)

    if __name__ == "__main__":
        process = processes.Process(target=work)
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


def test_a_process_terminates_a_process_of_its_own(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(TERMINATES_ITS_OWN, name="worker")
    assert program.wait() == 0, program.log()
    assert numbers(local_kinesis) == sorted([*range(11), *range(5)])


FORKED_IN_A_BLOCK = """
    import os, sys

    from penstock import Producer

    with Producer(stream="events") as producer:
        for number in range(11):
            producer.put(b"%d" % number, "k")
        child = os.fork()
        if child == 0:
            sys.exit(0)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_is_forked_in_a_block_and_ends(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(FORKED_IN_A_BLOCK, name="server")
    assert program.wait() == 0, program.log()
    assert numbers(local_kinesis) == list(range(11))


def numbers(kinesis) -> list[int]:
    return sorted(int(record.data) for record in all_records(kinesis, "events"))
