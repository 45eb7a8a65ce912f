"""The commands against the embedded Kinesis."""

import json
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("httptools")


from cli.commands.support import READERS, penstock, put, wait_until_active
from penstock.cli import main as cli
from penstock.runtime.system_clock import SystemClock


def test_shards_shows_the_lineage_as_a_tree(kinesis, stream, capsys):
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    client.merge_shards(
        StreamName=stream, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    wait_until_active(client, stream)
    status, out, _ = penstock(capsys, "shards", stream)
    assert status == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        stream,
        "├── shardId-000000000000  25.00% of the keys, closed",
        "│   ├── shardId-000000000004  12.50% of the keys, open",
        "│   └── shardId-000000000005  12.50% of the keys, open",
        "├── shardId-000000000001  25.00% of the keys, closed",
        "│   └── shardId-000000000006  50.00% of the keys, open, merged with shardId-000000000002",
        "├── shardId-000000000002  25.00% of the keys, closed",
        "└── shardId-000000000003  25.00% of the keys, open",
        "4 open, 3 closed",
    ]
    document = json.loads(penstock(capsys, "shards", stream, "--json")[1])
    assert [shard["shard_id"][-1] for shard in document if shard["is_open"]] == ["3", "4", "5", "6"]
    assert document[6]["parents"] == ["shardId-000000000001", "shardId-000000000002"]


def test_a_stream_that_does_not_exist_is_one_line_and_exit_1(capsys):
    status, out, err = penstock(capsys, "shards", "nosuch")
    assert (status, out) == (1, "")
    assert err.startswith("penstock shards: ")
    assert "nosuch" in err
    assert err.count("\n") == 1


def test_put_without_a_service_fails_before_it_reads(capsys, monkeypatch):
    monkeypatch.setattr("penstock.cli.service_options._PATIENCE_S", 0.2)
    status, out, err = penstock(capsys, "put", "orders", "--endpoint-url", "http://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert err.startswith(
        "penstock put: DescribeStreamSummary on stream orders: no connection: Could not connect"
    )


def test_an_interrupted_put_says_what_is_acknowledged(stream, capsys, monkeypatch):
    def payloads(_args):
        yield from [(b"a", "line 1")] * 600
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.put_command._payloads", payloads)
    status, _, err = penstock(capsys, "put", stream)
    assert status == 130
    said = re.fullmatch(
        r"penstock put: interrupted. (\d+) records are acknowledged; (\d+) more were read and are not acknowledged; "
        r"those that were being sent may be stored\n",
        err,
    )
    assert said is not None
    assert int(said[1]) + int(said[2]) == 600


# --- tail -----------------------------------------------------------------------------------------------


def test_tail_prints_what_is_there_and_leaves_no_trace(kinesis, stream, capsys):
    put(kinesis, stream, 20)
    status, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "20")
    documents = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert sorted(d["data"] for d in documents) == sorted(f"r{n}" for n in range(20))
    assert {tuple(sorted(d)) for d in documents} == {
        (
            "approximate_arrival_timestamp",
            "data",
            "explicit_hash_key",
            "partition_key",
            "sequence_number",
            "shard_id",
            "sub_sequence_number",
        )
    }
    assert "tail" not in kinesis.client("dynamodb").list_tables()["TableNames"]


def test_tail_prints_columns_for_people_and_bytes_as_base64(kinesis, stream, capsys):
    kinesis.client("kinesis").put_record(StreamName=stream, Data=b"\xff\x00", PartitionKey="k1")
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--count", "1")
    shard, arrival, key, data = out.split()
    assert (key, data) == ("k1", "base64:/wA=")
    assert shard in "0123"
    assert datetime.fromisoformat(arrival).tzinfo is not None


def test_tail_until_the_end_prints_everything_that_was_there_after_a_split_too(kinesis, stream, capsys):
    put(kinesis, stream, 20)
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    put(kinesis, stream, 20, "n")
    status, out, err = penstock(capsys, "tail", stream, "--until-end", "--format", r"%s\n")
    assert (status, err) == (0, "")
    assert sorted(out.split()) == sorted(f"{prefix}{n}" for prefix in "rn" for n in range(20))


@pytest.mark.parametrize("is_read_by_shard", [False, True])
def test_tail_until_the_end_fails_when_a_shard_could_not_be_read_to_it(
    kinesis, stream, capsys, is_read_by_shard
):
    put(kinesis, stream, 20)
    shard = "shardId-000000000002"
    arguments = ["--shard", shard] if is_read_by_shard else []
    status, out, err = penstock(
        capsys, "tail", "-e", stream, "--from", f'{{"{shard}": "12", "*": "TRIM_HORIZON"}}', *arguments
    )
    assert status == 1
    assert (out == "") == is_read_by_shard
    last = err.splitlines()[-1]
    assert last.startswith(f"penstock tail: stream {stream}: not everything was read. Stopped: {shard}. ")
    assert "the service refuses position 12.0" in last


def test_tail_of_a_stream_that_is_deleted_meanwhile_says_so_once(kinesis, capsys, caplog, monkeypatch):
    kinesis.create_stream("tailed-and-deleted")
    put(kinesis, "tailed-and-deleted", 1)
    monkeypatch.setattr(
        "penstock.cli.record_lines.RecordPrinter.print_batch",
        lambda *_: kinesis.client("kinesis").delete_stream(StreamName="tailed-and-deleted"),
    )
    status, _, err = penstock(capsys, "tail", "tailed-and-deleted", "--from", "TRIM_HORIZON")
    assert status == 1
    assert err.startswith("penstock tail: stream tailed-and-deleted: not everything was read. ")
    assert "stream tailed-and-deleted does not exist any more" in err
    assert err.endswith("created again under its name: start the command again\n")
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["penstock.consumer"], "of its shard"


def test_tail_shows_the_traceback_of_a_defect(stream, capsys, caplog, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("penstock.consumer.delivery_loop.DeliveryLoop.run_once", fail)
    with pytest.raises(ZeroDivisionError):
        penstock(capsys, "tail", stream)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info[0] for record in warnings] == [ZeroDivisionError]


def test_tail_until_the_end_of_an_empty_stream_ends(stream, capsys):
    assert penstock(capsys, "tail", "-e", stream) == (0, "", "")


def test_tail_shows_the_records_of_a_key_a_shard_or_a_pattern(kinesis, stream, capsys):
    put(kinesis, stream, 20)

    def shown(*arguments):
        return penstock(capsys, "tail", stream, "-e", *arguments)[1].split()

    assert shown("--data", "--key", "k7") == ["r7"]
    assert sorted(shown("--grep", "^r1.", "--data")) == [f"r1{n}" for n in range(10)]
    by_shard = [shown("--shard", str(n), "-f", r"%p\n") for n in range(4)]
    assert [set(shards) for shards in by_shard] == [{f"shardId-00000000000{n}"} for n in range(4)]
    assert sum(map(len, by_shard)) == 20


def test_tail_of_a_child_shard_reads_that_shard_only(kinesis, stream, capsys):
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    kinesis.reset_calls()
    put(kinesis, stream, 40)
    status, out, err = penstock(capsys, "tail", stream, "-e", "--shard", "4", "-f", r"%p\n")
    assert (status, err, set(out.split())) == (0, "", {"shardId-000000000004"})
    read = [
        shard
        for shard in range(6)
        if kinesis.calls().count("GetRecords", stream=stream, shard=f"shardId-{shard:012d}")
    ]
    assert read == [4]


@pytest.mark.parametrize(
    ("arguments", "count", "hint"),
    [
        ((), 0, "Its remaining records: --from TRIM_HORIZON"),
        (("--from", "TRIM_HORIZON"), 10, "that are open."),
    ],
)
def test_tail_of_a_closed_shard_ends_where_the_shard_ends(kinesis, stream, capsys, arguments, count, hint):
    client = kinesis.client("kinesis")
    records = [{"Data": b"r", "PartitionKey": "k", "ExplicitHashKey": "1"} for _ in range(10)]
    client.put_records(StreamName=stream, Records=records)
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    client.put_records(StreamName=stream, Records=records)
    status, out, err = penstock(capsys, "tail", stream, "--shard", "0", "-f", r"%p\n", *arguments)
    assert (status, out.split()) == (0, ["shardId-000000000000"] * count)
    assert f"shardId-000000000000 of {stream} is closed" in err
    assert err.rstrip().endswith(hint)


def test_tail_of_a_shard_that_is_split_meanwhile_ends_with_it(kinesis, stream, capsys, monkeypatch):
    client = kinesis.client("kinesis")
    said = []

    def hear(message):
        said.append(message)
        if len(said) == 1:  # it waits for more
            client.split_shard(
                StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
            )

    monkeypatch.setattr("penstock.cli.tail_command.warn", hear)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["tail", stream, "--shard", "0", "--from", "TRIM_HORIZON"]) == 0
    assert ["waiting for more" in said[0], "is closed" in said[1]] == [True, True]


def test_tail_begins_as_long_ago_as_it_is_told(kinesis, stream, capsys):
    put(kinesis, stream, 3)
    assert penstock(capsys, "tail", stream, "-e", "--since", "1h", "--data")[1].count("\n") == 3
    moment = datetime.now(UTC) - timedelta(hours=1)
    assert penstock(capsys, "tail", stream, "-e", "--since", f"{moment}", "--data")[1].count("\n") == 3


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "From the beginning: --from TRIM_HORIZON"),
        (("--from", "TRIM_HORIZON"), "To end here: --until-end"),
    ],
)
def test_tail_says_on_a_terminal_that_it_waits(kinesis, stream, capsys, monkeypatch, arguments, hint):
    said = []

    def hear(message):
        said.append(message)
        put(kinesis, stream, 1)

    monkeypatch.setattr("penstock.cli.tail_command.warn", hear)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["tail", stream, "--count", "1", *arguments]) == 0
    assert [message.endswith(hint) for message in said] == [True]


def test_tail_follows_a_split(kinesis, stream, capsys):
    put(kinesis, stream, 20)
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    put(kinesis, stream, 40, "n")
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "60")
    assert len({json.loads(line)["data"] for line in out.splitlines()}) == 60


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--fan-out", "a b"], "penstock tail: --fan-out 'a b': the name of a registered consumer has"),
        (["--from", "yesterday"], "penstock tail: option --from: 'yesterday' is not a position"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a moment; expected ISO 8601"),
        (["--since", "2999-01-01"], "--since 2999-01-01: this moment is in the future"),
        (
            ["--from", "AT_TIMESTAMP 2999-01-01"],
            "--from AT_TIMESTAMP 2999-01-01: this moment is in the future",
        ),
        (["--shard", "9"], "--shard shardId-000000000009: stream s"),
        (["--shard", "0", "--fan-out", "look"], "--shard and --fan-out exclude each other"),
        (["--count", "0"], "--count 0"),
        (["--format", "%z"], "--format '%z': '%z' is none of %s"),
        (["--grep", "("], "--grep '('"),
    ],
)
def test_wrong_values_are_usage_errors(stream, capsys, arguments, word):
    status, _, err = penstock(capsys, "tail", stream, *arguments)
    assert status == 2
    assert word in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tail", "S", "--since", "2026-03-08T02:30:00"], "does not exist in the time zone of this machine (America/New_York)"),
        (["tail", "S", "--from", "AT_TIMESTAMP 2025-11-02T01:30"], "exists twice in the time zone of this machine"),
        (["tail", "S", "--until", "2025-11-02 01:30"], "2025-11-02T01:30:00-04:00 or 2025-11-02T01:30:00-05:00"),
        (["tail", "S", "--since", "1769860800"], "seconds? milliseconds are expected; in seconds it would be 2026-01-31T12"),
        (["tail", "S", "--since", "90"], "seconds? milliseconds are expected; in seconds it would be 1970-01-01T00:01:30Z"),
        (["tail", "S", "--until", "soon"], "--until: 'soon' is not a moment"),
        (["tail", "S", "--until", "9999-12-31T23:59"], "--until: '9999-12-31T23:59' is after the year 9998"),
        (["tail", "S", "--since", "9" * 5000 + "d"], "is not a moment"),
        (["tail", "S", "--until", "2h", "--since", "1h"], "--since 1h is not before --until 2h: there is nothing to read"),
        (["tail", "S", "--until", "2025-10-01", "--since", "2025-10-01"], "--since 2025-10-01 is not before --until 2025-10-01"),
        (["tail", "S", "--until", "1h", "--from", "latest"], "--from latest is not before --until 1h"),
        (["tail", "S", "--until-end", "--from", "LATEST"], "--from LATEST leaves out all that --until-end reads"),
        (["tail", "S", "--until", "1h", "--until-end"], "not allowed with argument"),
        (["plan", "S", "--since", "2999-01-01"], "--since 2999-01-01: this moment is in the future"),
        (["consume", "S", "--application", "app", "--from", "2025-11-02 01:30"], "exists twice in the time zone of this machine"),
        (["consume", "S", "--application", "app", "--from", "AT_TIMESTAMP 1769860800"], "--from: '1769860800' is"),
        (["consume", "S", "--application", "app", "--from", "2999-01-01"], "--from 'AT_TIMESTAMP 2999-01-01T05:00:00Z': this"),
    ],
)  # fmt: skip
def test_a_moment_that_cannot_be_meant_is_a_usage_error(stream, capsys, new_york, arguments, message):
    words = [stream if word == "S" else word for word in arguments]
    try:
        status, _, err = penstock(capsys, *words)
    except SystemExit as exit_:
        status, err = exit_.code, capsys.readouterr().err
    assert status == 2
    assert message in err


# The second one leaves while there is nothing more to write, so no write fails.
@pytest.mark.parametrize("reader", READERS)
def test_tail_ends_quietly_when_nobody_reads(kinesis, stream, reader):
    put(kinesis, stream, 200)
    command = (
        f"{sys.executable} -m penstock tail {stream} --from TRIM_HORIZON | {reader}; exit ${{PIPESTATUS[0]}}"
    )
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 141
    assert answer.stdout.count("\n") == 1
    assert answer.stderr == ""


def test_a_closed_output_is_no_error(stream):
    command = f"{sys.executable} -m penstock tail -e {stream} >&-"
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_tail_has_succeeded_when_all_that_was_asked_for_was_read(kinesis, stream):
    put(kinesis, stream, 20)
    command = f"{sys.executable} -m penstock tail {stream} --from TRIM_HORIZON --count 5 | head -n 5"
    for _ in range(2):  # the reader goes while tail is stopping, sometimes before a look and sometimes after
        subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60, check=True)


def test_leases_of_an_application_without_a_table_are_an_error(capsys):
    status, _, err = penstock(capsys, "leases", "nosuch")
    assert status == 1
    assert "nosuch" in err


HOSTILE = "k[/x]\x1b[31m\nnext\u202e"
SHOWN = "k[/x]\\x1b[31m\\nnext\\u202e"


def put_hostile(kinesis, stream):
    kinesis.client("kinesis").put_record(
        StreamName=stream, Data=f"d{HOSTILE}".encode(), PartitionKey=f"p{HOSTILE}"
    )


@pytest.mark.parametrize(
    "command", [["tail", "--count", "1"], ["consume", "--application", "hostile-records"]]
)
def test_a_record_cannot_command_the_terminal_that_shows_it(kinesis, stream, command):
    put_hostile(kinesis, stream)
    name, *options = command
    shell = (
        f"{sys.executable} -m penstock {name} {stream} {' '.join(options)} --from TRIM_HORIZON | head -n 1"
    )
    answer = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.rstrip("\n").endswith(f"p{SHOWN}  d{SHOWN}")


def test_json_of_a_hostile_record_is_safe_and_exact(kinesis, stream, capsys):
    put_hostile(kinesis, stream)
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "1")
    assert out.count("\n") == 1
    assert not {"\x1b", "\u202e"} & set(out)
    assert json.loads(out)["data"] == f"d{HOSTILE}"


def test_data_alone_is_given_byte_by_byte_to_a_program(kinesis, stream):
    kinesis.client("kinesis").put_record(StreamName=stream, Data=b"\x1b\xff\x00", PartitionKey="k")
    command = [sys.executable, "-m", "penstock", "tail", stream, "--from", "TRIM_HORIZON"]
    answer = subprocess.run([*command, "--count", "1", "--data"], capture_output=True, timeout=60, check=True)
    assert answer.stdout == b"\x1b\xff\x00\n"


def test_a_lease_cannot_command_the_terminal_that_shows_it(kinesis, capsys):
    dynamodb = kinesis.client("dynamodb")
    dynamodb.create_table(
        TableName="hostile-leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    lease = {
        "leaseKey": {"S": HOSTILE},
        "leaseOwner": {"S": f"w{HOSTILE}"},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON"},
    }
    dynamodb.put_item(TableName="hostile-leases", Item=lease)
    strange = {"leaseKey": {"S": f"x{HOSTILE}"}, "entityType": {"S": f"e{HOSTILE}"}}
    dynamodb.put_item(TableName="hostile-leases", Item=strange)
    status, out, err = penstock(capsys, "leases", "hostile-leases", "--observe", "0")
    assert status == 0
    assert f"\n{SHOWN}" in out
    assert f"w{SHOWN}  █" in out
    assert f"its entityType is e{SHOWN}" in err
    assert not {"\x1b", "\u202e"} & set(out + err)
    status, out, _ = penstock(capsys, "leases", "hostile-leases", "--observe", "0", "--json")
    assert json.loads(out)["leases"][0]["owner"] == f"w{HOSTILE}"
    assert not {"\x1b", "\u202e"} & set(out)


def test_leases_show_who_assigns_them_in_a_native_kcl_3_fleet(kinesis, capsys, monkeypatch):
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: 1000)  # the service's clock counts
    dynamodb = kinesis.client("dynamodb")
    names = [
        {"AttributeName": "leaseOwner", "AttributeType": "S"},
        {"AttributeName": "leaseKey", "AttributeType": "S"},
    ]
    index = {
        "IndexName": "LeaseOwnerToLeaseKeyIndex",
        "KeySchema": [
            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
            {"AttributeName": "leaseKey", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    dynamodb.create_table(
        TableName="native",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=names,
        GlobalSecondaryIndexes=[index],
        BillingMode="PAY_PER_REQUEST",
    )
    lease = {"leaseOwner": {"S": "py"}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "TRIM_HORIZON"}}
    lock = {
        "ownerName": {"S": "java-1"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "1"},
    }
    metrics = {"lut": {"N": str(int(kinesis.clock.now_s()))}, "sts": {"M": {"C": {"L": [{"N": "42.5"}]}}}}
    limits = {"opr": {"M": {"C": {"L": [{"N": "100"}]}}}}
    for key, entity, row in (
        ("shard", "LEASE", lease),
        ("Leader", "LEADER", lock),
        ("Migration3.0", "CLIENT_VERSION_MIGRATION", {"cv": {"S": "CLIENT_VERSION_3X"}}),
        ("java-1", "WORKER_METRIC_STATS", metrics | limits),
        ("java-0", "WORKER_METRIC_STATS", {"lut": {"N": "1700000000"}}),
    ):
        item = {"leaseKey": {"S": key}, "entityType": {"S": entity}, **row}
        dynamodb.put_item(TableName="native", Item=item)
    status, out, err = penstock(capsys, "leases", "native", "--observe", "0")
    assert (status, err) == (0, "")
    assert "fleet of KCL 3 workers (CLIENT_VERSION_3X)" in out
    assert "a native KCL 3 fleet: its leader assigns every lease\nleader: java-1" in out
    fleet = json.loads(penstock(capsys, "leases", "native", "--observe", "0", "--json")[1])["fleet"]
    assert (fleet["mode"], fleet["leader"]) == ("led", "java-1")
    assert [(report["worker"], report["is_fresh"], report["metrics"]) for report in fleet["reports"]] == [
        ("java-0", False, {}),
        ("java-1", True, {"C": 42.5}),
    ]


# --- standing still -------------------------------------------------------------------------------------


# --- registered consumers ---------------------------------------------------------------------------------


def test_tail_registers_a_consumer_that_is_listed_and_deregistered_by_hand(kinesis, stream, capsys):
    assert penstock(capsys, "streams", "consumers", stream)[:2] == (0, "0 registered\n")
    put(kinesis, stream, 20)
    arguments = ["--from", "TRIM_HORIZON", "--count", "20", "--fan-out", "billing"]
    status, out, _ = penstock(capsys, "tail", stream, *arguments)
    assert status == 0
    assert len(out.splitlines()) == 20
    status, out, _ = penstock(
        capsys, "streams", "consumers", stream, "--register", "billing"
    )  # it is there already
    assert status == 0
    assert out.startswith("billing  ACTIVE  since 20")
    assert out.endswith("\n1 registered\n")
    (document,) = json.loads(penstock(capsys, "streams", "consumers", stream, "--json")[1])
    assert document["arn"].startswith(
        f"arn:aws:kinesis:us-east-1:123456789012:stream/{stream}/consumer/billing:"
    )
    status, out, _ = penstock(capsys, "streams", "consumers", stream, "--deregister", "billing")
    assert status == 0
    assert "billing  ACTIVE" not in out
    status, _, err = penstock(capsys, "streams", "consumers", stream, "--register", "a b")
    assert status == 2
    assert "1 to 128 letters" in err
