"""`penstock local` in the foreground, and the server as a separate process."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys

import pytest

from penstock_local import Handle, LocalKinesis, LocalKinesisProcess, command
from penstock_local.about import exported_variables
from penstock_local.errors import OptionError, Unavailable
from penstock_local.handle import Calls
from waiting import wait_until


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock_local", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_what_a_shell_takes_and_stops_cleanly(number):
    process = start("--shards", "orders=3", "clicks=1", "--no-limits")
    lines = lines_of(process)
    handle = Handle(exported_variables(lines)["AWS_ENDPOINT_URL"])
    port = handle.endpoint_url.rpartition(":")[2]
    assert lines == [
        *(f"export {name}={value}" for name, value in handle.environ().items()),
        "# Kinesis, DynamoDB, CloudWatch and STS are served at this endpoint.",
        f'# In another terminal: eval "$(penstock-local --export --port {port})"',
        "# Streams: orders (3 shards), clicks (1 shard).",
        "# Nothing is kept: everything is gone when the server stops. --state DIR keeps it.",
        f"# To stop the server: Ctrl-C where it runs, or kill {process.pid}",
    ]
    state = handle.state()
    assert {name: s["open_shards"] for name, s in state["streams"].items()} == {"orders": 3, "clicks": 1}
    assert state["limits"] is False
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """The output of a server when it starts."""
    lines = []
    while not lines or not lines[-1].startswith("# To stop"):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.parametrize("tls", [(), ("--tls",)], ids=["plain", "tls"])
def test_the_lines_of_a_running_server_point_a_shell_to_it(tls, tmp_path):
    folder = tmp_path / "kept"
    process = start(*tls, "--shards", "orders=1", "--state", str(folder))
    lines = lines_of(process)
    port = exported_variables(lines)["AWS_ENDPOINT_URL"].rpartition(":")[2]
    program = f'eval "$({sys.executable} -m penstock_local --export --port {port})"; env'
    printed = subprocess.run(
        ["/bin/sh", "-ec", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert {f"{name}={value}" for name, value in exported_variables(lines).items()} <= set(printed)
    assert f"# Streams, records and tables are kept in {folder}." in lines
    process.terminate()
    process.communicate(timeout=60)


def test_there_are_no_lines_of_a_server_that_does_not_run():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        process = start("--export", "--port", str(port))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert (
        err
        == f"penstock-local: no embedded Kinesis runs on port {port}; start one: penstock-local --port {port}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shards", "orders"), "--shards takes NAME=N with N of at least 1, not 'orders'"),
        (("--shards", "orders=0"), "--shards takes NAME=N"),
        (("--shards", "orders=2", "orders=3"), "--shards names stream orders twice"),
        (("--time-factor", "-1"), "--time-factor must be at least 0"),
        (("--settle", "inf"), "--settle must be at least 0, not inf"),
        (("--state", ""), "--state is empty: name a folder"),
        (("--cert", "cert.pem"), "--cert and --key are the two files of one certificate"),
        (("--cert", "none.pem", "--key", "none.pem"), "cannot use the certificate none.pem"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    process = start(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert message in err


def test_the_command_line_describes_it():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--port", "0", "--shards", "a=1", "--no-limits", "--time-factor", "2"])
    assert (args.port, args.shards, args.no_limits, args.time_factor) == (0, ["a=1"], True, 2.0)
    sizes = ("64m", "64MB", "64 MiB", "67108864", "67108864b")
    assert {parser.parse_args(["--memory-max", size]).memory_max for size in sizes} == {2**26}


def test_a_process_of_its_own_takes_the_same_options():
    with LocalKinesis.process(limits=False, time_factor=0, settle_s=0) as kinesis:
        assert kinesis.pid != os.getpid()
        client = kinesis.client("kinesis")
        client.create_stream(StreamName="s", ShardCount=1)
        assert (
            client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamStatus"]
            == "ACTIVE"
        )
        assert kinesis.clock.now_ms() == kinesis.clock.now_ms()
        assert kinesis.state()["limits"] is False
    with pytest.raises(Unavailable, match="does not run"):
        _ = kinesis.pid


def test_a_server_ends_with_the_process_that_started_it():
    program = (
        "import os, signal\n"
        "from penstock_local import LocalKinesisProcess\n"
        "print(LocalKinesisProcess().start().endpoint_url, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, stdout=subprocess.PIPE, text=True, timeout=60
    )
    server = Handle(ran.stdout.strip())
    wait_until(lambda: not answers(server), "the server to end")


def answers(server: Handle) -> bool:
    try:
        server.state()
    except Unavailable:
        return False
    return True


def test_a_server_that_was_not_started_says_what_to_do():
    with pytest.raises(AttributeError, match=r"LocalKinesis has no 'endpoint_url'; .* once it was started"):
        _ = LocalKinesis().endpoint_url


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": "4567"}, "port must be a whole number of 0 to 65535, not '4567'"),
        ({"port": True}, "port must be a whole number"),
        ({"time_factor": "2"}, "time_factor must be a number of at least 0, not '2'"),
        ({"time_factor": float("nan")}, "time_factor must be at least 0, not nan"),
        ({"settle_s": None}, "settle_s must be a number of at least 0, not None"),
        ({"memory_bytes_max": 1e9 + 0.5}, "memory_bytes_max must be a whole number of at least 1"),
        ({"region": 5}, "region must be the name of a region"),
        ({"state_dir": b"here"}, "state_dir must be the path of a folder, not b'here'"),
    ],
)
def test_an_option_of_another_kind_is_named(options, message):
    with pytest.raises(OptionError, match=message):
        LocalKinesis(**options)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_its_parents_server_running():
    with LocalKinesisProcess() as kinesis:
        kinesis.create_stream("orders")
        child = os.fork()
        if child == 0:  # pragma: no cover - counted in the parent
            try:
                kinesis.stop()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert list(kinesis.state()["streams"]) == ["orders"]


def test_a_running_server_is_not_started_twice():
    with LocalKinesis() as kinesis, pytest.raises(OptionError, match="runs already"):
        kinesis.start()
    with LocalKinesisProcess() as process, pytest.raises(OptionError, match="runs already"):
        process.start()


def test_a_killed_process_is_gone():
    kinesis = LocalKinesisProcess().start()
    kinesis.kill()
    with pytest.raises(Unavailable):
        kinesis.state()


def test_time_runs_by_its_factor():
    with LocalKinesis(time_factor=10_000) as kinesis:
        first = kinesis.clock.now_ms()
        while kinesis.clock.now_ms() < first + 3_600_000:  # an hour passes in 0.36 s
            pass


def test_calls_of_all_services_are_summed_unless_one_is_named():
    calls = Calls({"kinesis.TagResource": 2, "dynamodb.TagResource": 3}, {}, {}, [])
    assert calls.count("TagResource") == 5
    assert calls.count("dynamodb.TagResource") == 3
    assert calls.count("*") == 5


def test_calls_of_an_operation_that_does_not_exist_are_not_counted_as_none():
    calls = Calls({"kinesis.PutRecord": 2}, {}, {}, [])
    assert calls.count("PutRecords") == 0
    for count in (calls.count, calls.failed):
        with pytest.raises(
            OptionError, match=r"PutRecrod, which is not an operation .*did you mean PutRecord\?"
        ):
            count("PutRecrod")


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [("| true", 141, ""), (">/dev/full", 1, "No space left"), (">&-", 0, "")],
)
def test_an_output_that_cannot_be_written_is_no_defect(kinesis, target, status, said):
    port = kinesis.endpoint_url.rpartition(":")[2]
    command = f"{sys.executable} -m penstock_local --export --port {port} {target}; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, "Traceback" in answer.stderr) == (status, False)
    assert said in answer.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_that_cannot_be_written_is_an_error(option, unbuffered):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        answer = subprocess.run(
            [sys.executable, "-m", "penstock_local", option],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert (answer.returncode, answer.stderr) == (1, "penstock-local: [Errno 28] No space left on device\n")
