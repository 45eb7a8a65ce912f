"""Processes end in odd ways with records that wait: from a hook at exit, below a thread, through a signal that is swallowed."""

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


def test_a_process_that_goes_on_after_its_termination_is_ended(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(NEVER_GIVES_UP, name="worker")
    assert program.wait() == 143, program.log()
    assert numbers(local_kinesis) == list(range(11))


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
