"""A notebook: cells are run twice, interrupted, and lost with their kernel."""

import os
import sys
import warnings

import pytest

from user_programs import Orders, all_records, once
from waiting import wait_by_limited_calls, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Jupyter's own
    from jupyter_client.manager import KernelManager

READ = r"""
from penstock import Consumer

def handle(batch):
    with open("seen.txt", "a") as file:
        file.write("".join(record.data.decode() + "\n" for record in batch))

consumer = Consumer(stream="orders", application="notebook", handler=handle, starting_position="TRIM_HORIZON")
"""
PUT = """
from penstock import Producer

producer = Producer(stream="orders")
for number in range(100):
    producer.put(f"order {number}".encode(), partition_key=f"c{number}")
"""


class Notebook:
    """A kernel, and the cells that a person runs in it."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder), env=dict(os.environ))
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=90)

    def run(self, cell: str) -> str:
        """Run a cell to its end; return the error's name, or nothing."""
        return self._client.execute_interactive(cell, timeout=90, output_hook=lambda _: None)["content"].get(
            "ename", ""
        )

    def begin(self, cell: str) -> str:
        """Begin to run a cell."""
        return self._client.execute(cell)

    def interrupt(self, cell_id: str) -> str:
        """Press the stop button; return the error's name in the cell that ends, or nothing."""
        self._manager.interrupt_kernel()
        while True:
            reply = self._client.get_shell_msg(timeout=90)
            if reply["parent_header"].get("msg_id") == cell_id:
                return reply["content"].get("ename", "")

    def restart(self) -> None:
        self._client.stop_channels()
        self._manager.restart_kernel()
        self._connect()

    def end(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()

    def seen(self) -> list[str]:
        file = self.folder / "seen.txt"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def wait_for(self, orders: Orders) -> None:
        wait_until(lambda: len(set(self.seen())) == len(orders.texts), f"{len(orders.texts)} orders")


@pytest.fixture
def notebook(local_kinesis, tmp_path, monkeypatch):
    assert sys.prefix != sys.base_prefix, "a kernel named python3 is looked for in this environment first"
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    opened = Notebook(tmp_path)
    yield opened
    opened.end()


def counted(seen) -> dict[str, int]:
    return {text: seen.count(text) for text in seen}


def test_the_cell_that_starts_a_consumer_is_run_twice(local_kinesis, notebook):
    local_kinesis.create_stream("orders", shards=4)
    orders = Orders(local_kinesis)
    orders.put(100)
    assert notebook.run(READ + "consumer.start()") == ""
    notebook.wait_for(orders)
    assert notebook.run("first = consumer\n" + READ + "consumer.start()") == ""  # the first one lives on
    orders.put(100)
    notebook.wait_for(orders)
    assert notebook.run("consumer.start()") == "UsageError"  # and the cell below is run twice, too
    orders.put(100)
    notebook.wait_for(orders)
    assert notebook.run("consumer.stop(); first.stop()") == ""
    assert counted(notebook.seen()) == once(orders)


def test_a_cell_that_runs_a_consumer_is_interrupted_and_run_again(local_kinesis, notebook):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    for _ in range(3):
        orders.put(100)
        cell = notebook.begin(READ + "consumer.run()")
        notebook.wait_for(orders)
        assert notebook.interrupt(cell) == ""  # it has stopped gracefully
    assert notebook.run("assert not consumer.is_running") == ""
    assert counted(notebook.seen()) == once(orders)


def test_a_loop_over_a_consumer_is_interrupted_and_goes_on_in_the_next_cell(local_kinesis, notebook):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    loop = READ.replace("handler=handle, ", "") + "for batch in consumer:\n    handle(batch)\n"
    for _ in range(3):
        orders.put(100)
        cell = notebook.begin(loop)
        notebook.wait_for(orders)
        notebook.interrupt(cell)
    assert counted(notebook.seen()) == once(orders)


def test_the_cell_that_puts_orders_is_run_twice_and_nobody_closes_its_producers(local_kinesis, notebook):
    local_kinesis.create_stream("orders", shards=2)
    assert [notebook.run(PUT), notebook.run(PUT)] == ["", ""]
    wait_by_limited_calls(lambda: len(all_records(local_kinesis, "orders")) == 200, "200 orders")
    found = [record.data.decode() for record in all_records(local_kinesis, "orders")]
    assert counted(found) == {f"order {number}": 2 for number in range(100)}


def test_the_kernel_is_restarted_right_behind_the_cell_that_puts_orders(local_kinesis, notebook):
    local_kinesis.create_stream("orders", shards=2)
    assert notebook.run(PUT) == ""
    notebook.restart()
    found = [record.data.decode() for record in all_records(local_kinesis, "orders")]
    assert counted(found) == {f"order {number}": 1 for number in range(100)}
