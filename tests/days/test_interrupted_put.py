"""A file of orders is put by a command that is interrupted, since it is the wrong file."""

import re
import signal
import subprocess

from user_programs import all_records
from waiting import wait_until


def test_the_report_of_an_interrupted_put_bounds_what_is_stored(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=1)  # a megabyte and a thousand records a second
    (tmp_path / "wrong.txt").write_text("".join(f"order {n}\n" for n in range(20_000)), encoding="utf-8")
    put = programs.penstock("put", "orders", "wrong.txt", name="put", stdin=subprocess.DEVNULL)

    def begun():
        return local_kinesis.calls().count("PutRecords") >= 3

    wait_until(begun, "the first records")
    put.send(signal.SIGINT)
    assert put.wait() == 130
    report = re.search(r"interrupted\. (\d+) records are acknowledged; (\d+) more were read", put.log())
    acknowledged, unknown = int(report[1]), int(report[2])
    held = [record.data.decode() for record in all_records(local_kinesis, "orders")]
    assert len(held) == len(set(held))
    assert (
        0 < acknowledged <= len(held) <= acknowledged + unknown < 20_000
    )  # a request that is on its way may be stored
    assert "may be stored" in put.log()
