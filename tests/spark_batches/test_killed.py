"""A program with micro-batches that is killed again and again: every record once, every repeat the same."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_program.py")
KILLS = 6


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_and_repeats_are_the_same_although_the_program_is_killed(
    kinesis, options, stream, tmp_path
):
    out = tmp_path / "out"
    out.mkdir()
    client = kinesis.client("kinesis")
    chance = random.Random(7)
    ended, put_count = threading.Event(), 0

    def put_on():
        nonlocal put_count
        while not ended.wait(0.05):
            records = [
                {"Data": b"%d" % (put_count + n), "PartitionKey": f"k{chance.randrange(40)}"}
                for n in range(20)
            ]
            assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
            put_count += 20

    chosen = {
        **options,
        "applicationName": stream,
        "startingPosition": "TRIM_HORIZON",
        "maxRecordsPerTrigger": "400",
        "leaseDuration": "5s",
    }

    def start():
        command = [sys.executable, str(PROGRAM), json.dumps(chosen), str(tmp_path / "checkpoint"), str(out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_for_lines(program, count):
        for _ in range(count):
            assert program.stdout.readline().startswith("written ")

    def seen():
        return [int(data) for file in out.glob("[0-9]*.json") for _, _, data in json.loads(file.read_text())]

    writer = threading.Thread(target=put_on)
    writer.start()
    for number in range(KILLS):
        program = start()
        try:
            wait_for_lines(program, 1 + number % 3)
            if number == 2:
                shard = client.list_shards(StreamName=stream)["Shards"][0]
                ends = [int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey")]
                client.split_shard(
                    StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(sum(ends) // 2)
                )
            threading.Event().wait(chance.random())  # anywhere in a batch
        finally:
            program.kill()
            program.communicate(timeout=60)
    ended.set()
    writer.join(60)
    program = start()
    try:
        while len(set(seen())) < put_count:
            wait_for_lines(program, 1)
    finally:
        program.terminate()
        program.communicate(timeout=120)
    assert program.returncode == 0
    assert sorted(seen()) == list(range(put_count))
    assert list(out.glob("differs-*")) == []
