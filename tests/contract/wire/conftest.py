"""One suite for the Kinesis API over the wire, and the servers that it runs against.

Every test takes `server` (quotas off where they can be) or `limited` (quotas on) and runs once per server. deviations.py
lists what servers by others are known to do differently. Those tests are expected to fail; when one passes, the strict xfail
reports it. moto runs in its newest version, so a pass there (XPASS) is reported but is not a failure.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock_local import LocalKinesis

HERE = Path(__file__).parent
PATIENCE_S = 20
OURS = "penstock"
# Bad requests must reach the server: the client checks nothing and tries once.
PLAIN = Config(
    retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60, parameter_validation=False
)


def load(name: str, path: Path) -> Any:
    """Import a file that lies in no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


PEERS = load("penstock_peers", HERE.parents[2] / "tools" / "peers.py")
KNOWN = load("penstock_wire_deviations", HERE / "deviations.py")
UNMAINTAINED = {"kinesalite"}
"""Servers that tests/docs/test_coming_from.py runs, and this suite does not ask."""
NAMES = [OURS, *(name for name in PEERS.PEERS if name not in UNMAINTAINED)]


class Server:
    """A server under test, with the few things that every test needs.

    Args:
        name: `penstock`, or one of the peers.
        endpoint_url: Where it is.
        advance: Moves its clock by seconds; None where only real time passes.
    """

    def __init__(
        self, name: str, endpoint_url: str, advance: Callable[[float], object] | None = None
    ) -> None:
        self.name = name
        self.endpoint_url = endpoint_url
        self._advance = advance
        self.client = boto3.client(
            "kinesis",
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="secret",
            config=PLAIN,
        )

    # --- time ---

    def let_pass(self, seconds: float) -> None:
        """Let a time pass on the server: a short one, where its clock cannot be moved."""
        if self._advance is not None:
            self._advance(seconds)
        else:
            threading.Event().wait(seconds)

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; gives what it gave."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            if answer := condition():
                return answer
            assert time.monotonic() < deadline_s, f"waited {PATIENCE_S} s for {what}"
            self.let_pass(0.05)

    # --- streams and shards ---

    def status(self, stream: str) -> str:
        answer = self.client.describe_stream_summary(StreamName=stream)
        return str(answer["StreamDescriptionSummary"]["StreamStatus"])

    def settle(self, stream: str) -> None:
        """Wait until a stream is ACTIVE."""
        self.wait_until(lambda: self.status(stream) == "ACTIVE", f"stream {stream} to be ACTIVE")

    def create(self, shards: int = 1, **options: Any) -> str:
        """Create a stream of its own name and wait until it can be used."""
        stream = f"wire-{uuid.uuid4().hex[:12]}"
        if "StreamModeDetails" not in options:
            options["ShardCount"] = shards
        self.client.create_stream(StreamName=stream, **options)
        self.settle(stream)
        return stream

    def arn(self, stream: str) -> str:
        answer = self.client.describe_stream_summary(StreamName=stream)
        return str(answer["StreamDescriptionSummary"]["StreamARN"])

    def shards(self, stream: str) -> list[dict[str, Any]]:
        """Return all shards, as a listing without filter shows them."""
        return list(self.client.list_shards(StreamName=stream)["Shards"])

    def ids(self, stream: str) -> list[str]:
        return [shard["ShardId"] for shard in self.shards(stream)]

    def open_ids(self, stream: str) -> list[str]:
        return [
            shard["ShardId"]
            for shard in self.shards(stream)
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]

    def split(self, stream: str, shard: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Split a shard in the middle; gives its children by hash range."""
        shard = shard or self.shards(stream)[0]
        self.begin_split(stream, shard)
        self.settle(stream)
        return self.children(stream, shard["ShardId"])

    def begin_split(self, stream: str, shard: dict[str, Any]) -> None:
        """Split a shard in the middle, and wait for nothing."""
        span = shard["HashKeyRange"]
        middle = (int(span["StartingHashKey"]) + int(span["EndingHashKey"]) + 1) // 2
        self.client.split_shard(
            StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle)
        )

    def merge(self, stream: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """Merge two neighbours; gives the child."""
        self.client.merge_shards(
            StreamName=stream, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
        )
        self.settle(stream)
        return self.children(stream, one["ShardId"])[0]

    def children(self, stream: str, parent: str) -> list[dict[str, Any]]:
        found = [
            shard
            for shard in self.shards(stream)
            if parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
        ]
        return sorted(found, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))

    # --- records ---

    def put(self, stream: str, data: bytes, key: str = "k", hash_key: int | None = None) -> dict[str, Any]:
        where = {} if hash_key is None else {"ExplicitHashKey": str(hash_key)}
        return dict(self.client.put_record(StreamName=stream, Data=data, PartitionKey=key, **where))

    def iterator(
        self, stream: str, shard: str = "shardId-000000000000", kind: str = "TRIM_HORIZON", **place: Any
    ) -> str:
        answer = self.client.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType=kind, **place
        )
        return str(answer["ShardIterator"])

    def read(
        self, stream: str, shard: str = "shardId-000000000000", kind: str = "TRIM_HORIZON", **place: Any
    ) -> list[bytes]:
        """Return the data from an iterator to the tip, or to the end of the shard."""
        return [
            record["Data"] for page in self.pages(stream, shard, kind, **place) for record in page["Records"]
        ]

    def pages(
        self, stream: str, shard: str, kind: str = "TRIM_HORIZON", **place: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield pages from an iterator on until one is at the tip, or the last one of a closed shard."""
        iterator: str | None = self.iterator(stream, shard, kind, **place)
        for _ in range(50):
            page = self.client.get_records(ShardIterator=iterator)
            yield page
            iterator = page.get("NextShardIterator")
            if iterator is None or (not page["Records"] and page.get("MillisBehindLatest", 0) == 0):
                return
        raise AssertionError("fifty pages, and neither the tip nor the end")

    def last_page(self, stream: str, shard: str) -> dict[str, Any]:
        """Read a closed shard to its end; gives the page that says so."""
        iterator: str | None = self.iterator(stream, shard)
        for _ in range(10):
            page: dict[str, Any] = self.client.get_records(ShardIterator=iterator)
            iterator = page.get("NextShardIterator")
            if iterator is None:
                return page
        raise AssertionError(f"ten pages of the closed shard {shard}, and every one names a next one")


def refused(call: Callable[..., Any], *codes: str, **arguments: Any) -> str:
    """Make a call that must be refused with HTTP 400 and one of these codes; gives the code."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    assert (answer["Error"]["Code"] in codes, answer["ResponseMetadata"]["HTTPStatusCode"]) == (True, 400), (
        answer
    )
    return str(answer["Error"]["Code"])


def moment(seconds: float) -> dt.datetime:
    """A time as boto3 takes it, cut to milliseconds."""
    ms = int(seconds * 1000)
    return dt.datetime.fromtimestamp(ms // 1000, dt.UTC) + dt.timedelta(milliseconds=ms % 1000)


@pytest.fixture(name="refused")
def _refused() -> Callable[..., str]:
    return refused


@pytest.fixture(name="moment")
def _moment() -> Callable[[float], dt.datetime]:
    return moment


# --- servers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server after the other, without quotas where they can be switched off."""
    if request.param == OURS:
        with LocalKinesis(limits=False) as ours:
            yield Server(OURS, ours.endpoint_url, ours.clock.advance)
        return
    log = tmp_path_factory.mktemp("peers") / f"{request.param}.log"
    try:
        with PEERS.running(request.param, log) as endpoint_url:
            yield Server(request.param, endpoint_url)
    except PEERS.PeerUnavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture
def limited(server: Server) -> Iterator[Server]:
    """The same server with its quotas on; ours has a clock that only the test moves."""
    if server.name != OURS:
        yield server
        return
    with LocalKinesis(limits=True, time_factor=0) as ours:
        yield Server(OURS, ours.endpoint_url, ours.clock.advance)


@pytest.fixture
def ageing(server: Server) -> Iterator[Server]:
    """A server of its own on which hours may pass."""
    if server.name != OURS:
        pytest.skip(f"the clock of {server.name} cannot be moved, and the test would take minutes or hours")
    with LocalKinesis(limits=False, time_factor=0) as ours:
        yield Server(OURS, ours.endpoint_url, ours.clock.advance)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a server is known to do differently; those of others are fetched, and left to `make test-all`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if HERE not in item.path.parents or callspec is None or "server" not in callspec.params:
            continue
        name = callspec.params["server"]
        if name != OURS:
            item.add_marker("slow")
        # An entry names a test, or one of its cases.
        keys = (getattr(item, "originalname", item.name), item.name.replace(f"[{name}-", "["))
        for key in keys:
            if key in KNOWN.DEVIATIONS[name]:
                reason = f"{name} {KNOWN.DEVIATIONS[name][key]}"
                item.add_marker(pytest.mark.xfail(reason=reason, strict=name != "moto"))
            if key in KNOWN.NOT_ASKED[name]:
                item.add_marker(pytest.mark.skip(reason=f"{name} {KNOWN.NOT_ASKED[name][key]}"))
