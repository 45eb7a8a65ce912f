"""Every command prints whatever a stream holds, on a terminal that does not have its characters, and into a pipe that closes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.cli.main import command_names
from waiting import wait_until

KEY = "日本"
ACTING_KEY = "\x1b[2Jkey"
WORKER = "arbeiter-größe-日本"
ENCODINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
COMMANDS = {
    "tail": ["tail", "{stream}", "--from", "TRIM_HORIZON", "--until-end"],
    "tail --json": ["tail", "{stream}", "--from", "TRIM_HORIZON", "--until-end", "--json"],
    "shards": ["shards", "{stream}"],
    "autoscale": ["autoscale", "{stream}", "--min", "1", "--max", "9", "--once"],
    "plan": ["plan", "{stream}", "--application", "{application}"],
    "shards --json": ["shards", "{stream}", "--json"],
    "streams list": ["streams", "list"],
    "streams describe": ["streams", "describe", "{stream}"],
    "leases": ["leases", "{application}"],
    "leases --json": ["leases", "{application}", "--json"],
    "top": ["top", "{application}", "--once"],
    "top --json": ["top", "{application}", "--json"],
    "put": ["put", "{stream}", "{file}"],
    "queues list": ["queues", "list"],
    "queues list --json": ["queues", "list", "--json"],
    "options": ["options"],
    "completion": ["completion", "bash"],
    "simulate": ["simulate", "--seeds", "1"],
    "local": ["local", "--export"],
}
WITH_NOTES = {  # they say on standard error what they read
    "record": ["record", "{stream}", "--since", "1h", "-o", "{folder}/größe-日本.penstock"],
    "sql": ["sql", 'SELECT "partitionKey", text FROM {stream} ORDER BY 1'],
}
LASTING = {
    "consume": ["consume", "{stream}", "--application", "{application}-2", "--from", "TRIM_HORIZON"],
    "dashboard": ["dashboard", "{application}", "--port", "0"],
    "local": ["local", "--port", "0", "--state", "{folder}/größe-日本"],
}
# The first two start Spark; tests/demo and tests/delivery have what they print. `init` prints what was typed, in ASCII alone.
UNTRIED = {"demo", "deliver", "init"}


@pytest.fixture(scope="module")
def names(kinesis, tmp_path_factory):
    """A stream with keys and an application with owners beyond any of the encodings."""
    folder = tmp_path_factory.mktemp("encodings")
    kinesis.create_stream("encodings", 2)
    client = kinesis.client("kinesis")
    for key in (KEY, ACTING_KEY, "plain"):
        client.put_record(StreamName="encodings", Data="größe 🎉".encode(), PartitionKey=key)
    client.create_stream(StreamName="encodings-queued", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    client.get_waiter("stream_exists").wait(StreamName="encodings-queued", WaiterConfig={"Delay": 1})
    arn = client.describe_stream_summary(StreamName="encodings-queued")["StreamDescriptionSummary"][
        "StreamARN"
    ]
    client.create_queue(QueueName="encodings", StreamConfigurationList=[{"StreamARN": arn}])
    client.split_shard(
        StreamName="encodings", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    command = [sys.executable, "-m", "penstock", "consume", "encodings", "--application", "encodings-app"]
    command += ["--worker-id", WORKER, "--from", "TRIM_HORIZON"]
    with (folder / "consume.out").open("wb") as out:
        worker = subprocess.Popen(command, stdout=out, env={**os.environ, **kinesis.environ()})
    wait_until(lambda: (folder / "consume.out").read_bytes().count(b"\n") >= 3, "three records")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    file = folder / "größe-日本.txt"
    file.write_text("a line\n", encoding="utf-8")
    return {"stream": "encodings", "application": "encodings-app", "file": str(file), "folder": str(folder)}


def arguments_of(words, names, kinesis):
    found = [word.format(**names) for word in words]
    if words[0] == "local" and "--export" in words:
        found += ["--port", kinesis.environ()["AWS_ENDPOINT_URL"].rpartition(":")[2]]
    return [sys.executable, "-m", "penstock", *found]


def test_every_command_is_tried():
    tried = {words[0] for words in (*COMMANDS.values(), *WITH_NOTES.values(), *LASTING.values())}
    assert tried | UNTRIED == set(command_names())


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_terminal_does_not_have(names, kinesis, command, encoding):
    environ = {**os.environ, **ENCODINGS[encoding]}
    arguments = arguments_of(COMMANDS[command], names, kinesis)
    done = subprocess.run(arguments, capture_output=True, env=environ, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
    assert b"\x1b" not in done.stdout
    if command.endswith("--json"):
        lines = done.stdout.decode("ascii")
        documents = [json.loads(line) for line in lines.splitlines()] if command == "tail --json" else None
        assert documents is None or KEY in {each["partition_key"] for each in documents}
        assert documents is not None or json.loads(lines)
    elif command == "tail":
        assert rb"\u65e5\u672c" in done.stdout
        assert rb"\x1b[2Jkey" in done.stdout


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", WITH_NOTES)
def test_a_command_with_notes_prints_what_the_terminal_does_not_have(
    names, kinesis, command, encoding, tmp_path
):
    environ = {**os.environ, **ENCODINGS[encoding]}
    arguments = arguments_of(WITH_NOTES[command], {**names, "folder": str(tmp_path)}, kinesis)
    done = subprocess.run(arguments, capture_output=True, env=environ, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", LASTING)
def test_a_command_that_goes_on_prints_and_ends_as_always(names, kinesis, command, encoding, tmp_path):
    environ = {**os.environ, **ENCODINGS[encoding]}
    arguments = [*arguments_of(LASTING[command], names, kinesis)]
    if command == "consume":
        arguments[arguments.index("--application") + 1] += encoding.replace("-", "")
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        process = subprocess.Popen(arguments, stdout=to_out, stderr=to_err, env=environ)
    try:
        wanted = {"consume": 3, "dashboard": 1, "local": 6}[command]
        wait_until(
            lambda: out.read_bytes().count(b"\n") >= wanted or process.poll() is not None, "what it prints"
        )
        assert process.poll() is None, err.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status == 0
    assert b"Traceback" not in err.read_bytes()
    assert b"\x1b" not in out.read_bytes() + err.read_bytes()


@pytest.mark.parametrize(
    "words",
    [["options"], ["completion", "bash"], ["shards", "{stream}"], ["leases", "{application}"]],
)
def test_a_reader_that_has_gone_ends_a_command_quietly(names, kinesis, words):
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            arguments_of(words, names, kinesis),
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["options"], ["shards", "{stream}"]])
def test_an_output_that_is_full_is_one_line(names, kinesis, words):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            arguments_of(words, names, kinesis), stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("words", [["options"], ["shards", "{stream}"], ["tail", "{stream}", "--until-end"]])
def test_a_closed_output_changes_no_exit_status(names, kinesis, words):
    command = ["sh", "-c", '"$@" >&- 2>&-', "sh", *arguments_of(words, names, kinesis)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_defect_is_told_without_what_acts_on_a_terminal():
    code = (
        "import sys\n"
        "from penstock.cli import main as cli\n"
        "def run(args): raise RuntimeError('bell \\x1b]0;title\\x07 \\ud800')\n"
        "parser, modules = cli.build_parser()\n"
        "modules['options'].run = run\n"
        "sys.argv = ['penstock', 'options']\n"
        "sys.exit(cli.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert rb"RuntimeError: bell \x1b]0;title\x07 \ud800" in done.stderr
    assert b"\x1b" not in done.stderr
