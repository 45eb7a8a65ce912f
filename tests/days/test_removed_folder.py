"""The folder of an application's leases is cleaned up by mistake, while its worker runs and before it is started again."""

import time

from user_programs import CONSUMER, Orders, once
from waiting import wait_until


def test_a_folder_of_leases_is_removed_under_a_live_worker(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    folder = tmp_path / "leases" / "billing"
    text = CONSUMER.replace('"billing"', f'"file://{folder}"').replace('starting_position="TRIM_HORIZON"', "")
    worker = programs.start(text, name="worker")  # it begins at LATEST, as is the default
    rows = [folder / f"shardId-00000000000{number}.json" for number in (0, 1)]
    wait_until(lambda: all(row.exists() for row in rows), "the leases")
    worker.wait_for("shardId-000000000001")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)

    folder.parent.rename(tmp_path / "trash")
    orders.put(100)
    in_doubt = set(orders.texts)  # what was read since the last checkpoint comes again, as the log says
    wait_until(lambda: all(row.exists() for row in rows), "the leases, made again")
    assert "the lease table was deleted while the application runs; it is created again" in worker.log()
    orders.put(100)
    programs.wait_for(orders)
    assert worker.terminate() == 0

    orders.put(100)  # nobody runs
    (folder / "lost+found").mkdir()
    again = programs.start(text, name="again")
    orders.put(100)
    programs.wait_for(orders)
    assert again.terminate() == 0
    printed = programs.printed()
    assert set(printed) == set(orders.texts)
    assert {text for text, count in printed.items() if count > 1} <= in_doubt


def test_a_file_is_put_in_the_place_of_the_folder(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=1)
    folder = tmp_path / "leases"
    text = CONSUMER.replace('"billing"', f'"file://{folder}"')
    worker = programs.start(text, name="worker")
    orders = Orders(local_kinesis)
    orders.put(10)
    programs.wait_for(orders)
    (tmp_path / "backup").write_text("a backup")

    def is_replaced():
        folder.rename(tmp_path / f"trash of {time.monotonic_ns()}")
        try:
            (tmp_path / "backup").rename(folder)
        except IsADirectoryError:  # the worker was quicker
            return False
        return True

    wait_until(is_replaced, "a file in the place of the folder")
    assert worker.wait() == 1
    again = programs.start(text, name="again")
    assert again.wait() == 1
    for program in (worker, again):
        assert (
            f"{folder} is a file, not a folder. Name another folder, or move the file away" in program.log()
        )
    assert folder.read_text() == "a backup"
    assert programs.printed() == once(orders)
