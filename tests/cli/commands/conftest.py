"""An embedded Kinesis whose environment the commands see."""

import time
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("httptools")

from cli.commands.support import Worker
from penstock_local import LocalKinesis


@pytest.fixture(
    scope="package"
)  # one for all: an SDK client keeps the endpoint that the environment named first
def kinesis():
    with LocalKinesis() as server:
        yield server


@pytest.fixture(autouse=True)
def environ(kinesis, monkeypatch, tmp_path):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stream(kinesis, request):
    name = f"s{abs(hash(request.node.name))}"
    kinesis.create_stream(name, 4)
    return name


@pytest.fixture
def consume(tmp_path):
    workers = []

    def start(*arguments):
        workers.append(Worker(tmp_path, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def new_york(monkeypatch):
    """The time zone, which is this machine's as long."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield ZoneInfo("America/New_York")
    monkeypatch.undo()
    time.tzset()
