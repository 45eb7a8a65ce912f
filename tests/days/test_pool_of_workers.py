"""Processes of a pool put records through a producer that they keep open, and end in the ways in which pools end."""

import pytest

from user_programs import all_records

POOLS = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor

    from penstock import Producer

    producer = Producer(stream="events", linger_s=60) if sys.argv[1] == "module's producer" else None

    def work(number):
        global producer
        if producer is None:
            producer = Producer(stream="events", linger_s=60)  # the records wait until the process ends
        producer.put(b"%d" % number, "k")
        return number

    if __name__ == "__main__":
        how, method = sys.argv[1:]
        processes = multiprocessing.get_context(method)
        if how == "process":
            process = processes.Process(target=work, args=(0,))
            process.start()
            process.join()
            sys.exit(process.exitcode)
        if how in ("executor", "module's producer"):
            with ProcessPoolExecutor(2, mp_context=processes) as pool:
                list(pool.map(work, range(11)))
        if how == "joined pool":
            pool = processes.Pool(2)
            pool.map(work, range(11))
            pool.close()
            pool.join()
        if how == "pool left by with":  # which terminates its processes
            with processes.Pool(2) as pool:
                pool.map(work, range(11))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    "how", ["process", "executor", "joined pool", "pool left by with", "module's producer"]
)
def test_a_pool_of_workers_puts_every_record(local_kinesis, programs, how, method):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(POOLS, how, method, name="pools")
    assert program.wait() == 0, program.log()
    assert "the process ends with an open producer; closing it" in program.log()
    found = sorted(int(record.data) for record in all_records(local_kinesis, "events"))
    assert found == list(range(1 if how == "process" else 11))


FORKED = """
    import os, sys

    from penstock import Producer

    preloaded = Producer(stream="events", linger_s=60)
    child = os.fork()
    if child == 0:
        producer = preloaded if sys.argv[1] == "preloaded" else Producer(stream="events", linger_s=60)
        for number in range(11):
            producer.put(b"%d" % number, "k")
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("made", ["preloaded", "in the worker"])
def test_a_prefork_server_logs_every_event(local_kinesis, programs, made):
    local_kinesis.create_stream("events", shards=1)
    program = programs.start(FORKED, made, name="server")
    assert program.wait() == 0, program.log()
    assert sorted(int(record.data) for record in all_records(local_kinesis, "events")) == list(range(11))
