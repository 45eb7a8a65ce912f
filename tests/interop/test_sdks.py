"""The default clients of the SDKs against the embedded server: streams, records, errors, retries.

Each program holds the same conversation and prints what it saw. It creates a stream of two shards, lists it, puts batches
of records of 1 KB, and reads each shard with one call. It asks for a stream that is missing and creates one that is there.
Then it calls GetRecords without retries as often as it is told, and names the classes of the errors. It registers a
consumer, and reads each shard from a subscription until that ends. Then it subscribes as often as it is told, and names
the classes of the errors that come as events.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from counterparts import (
    SDK_CLI,
    SDK_CLI_2,
    SDK_GO,
    SDK_JAVA,
    SDK_JS,
    SDK_PYTHON,
    SDK_PYTHON_OLDEST,
    Counterpart,
)

from penstock_local import LocalKinesis

BATCHES = 3
DATA = sorted((f"{i}:" * 1000)[:1000] for i in range(BATCHES * 500))
DIGEST = hashlib.sha256("\n".join(DATA).encode()).hexdigest()
CONVERSATION = {
    "is_listed": True,
    "shards": 2,
    "failed": 0,
    "read": len(DATA),
    "digest": DIGEST,
    "missing": "ResourceNotFoundException",
    "again": "ResourceInUseException",
}
REFUSALS = [
    "ExpiredIteratorException",
    "InvalidArgumentException",
    "ProvisionedThroughputExceededException",
    "ResourceNotFoundException",
    "AccessDeniedException",
    "KMSAccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "KMSThrottlingException",
]
FAILURES = [
    "ResourceNotFoundException",
    "ResourceInUseException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "KMSThrottlingException",
    "InternalFailureException",
]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("counterpart", "java"),
    [
        pytest.param(SDK_JAVA, (), id="java over HTTP/2 with CBOR"),
        pytest.param(SDK_JAVA, ("-Daws.cborEnabled=false",), id="java over HTTP/2 with JSON"),
        pytest.param(SDK_JS, (), id="javascript over HTTP/2"),
        pytest.param(SDK_GO, (), id="go"),
        pytest.param(SDK_PYTHON, (), id="boto3"),
        pytest.param(SDK_PYTHON_OLDEST, (), id="the oldest boto3"),
    ],
)
def test_a_default_client_puts_reads_and_knows_every_error(
    counterpart: Counterpart, java: tuple[str, ...], tls: bool, tmp_path, record_property
):
    with LocalKinesis(limits=False, tls=tls) as server:
        for call, code in enumerate(REFUSALS):
            server.faults.error("GetRecords", code=code, status=400, skip=2 + call)
        server.faults.error("ListShards")
        # about 750 records of 1 KB are three events
        server.faults.in_subscription("end", after_events=3, count=2)
        for call, code in enumerate(FAILURES):
            server.faults.in_subscription("exception", after_events=1, code=code, skip=2 + call)
        numbers = (str(n) for n in (BATCHES, len(REFUSALS), len(FAILURES)))
        said = counterpart.run(server, tmp_path, "orders", *numbers, java=java)
        calls = server.calls()
    seen = json.loads(said)
    record_property("sdk", seen.pop("sdk"))
    assert [name_of(error) for error in seen.pop("refused")] == [name_of(code) for code in REFUSALS]
    assert [name_of(error) for error in seen.pop("failures")] == [name_of(code) for code in FAILURES]
    assert seen == {**CONVERSATION, "pushed": len(DATA), "pushed_digest": DIGEST}
    assert (calls.failed("ListShards"), calls.count("ListShards")) == (1, 2)
    assert (calls.count("PutRecords"), calls.failed("PutRecords")) == (BATCHES, 0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("counterpart", [SDK_CLI, SDK_CLI_2], ids=["1", "2"])
def test_the_aws_cli_puts_reads_and_knows_every_error(
    counterpart: Counterpart, tls: bool, tmp_path, record_property
):
    with LocalKinesis(limits=False, tls=tls) as server:
        for call, code in enumerate(REFUSALS):
            server.faults.error("GetRecords", code=code, status=400, skip=2 + call)
        server.faults.error("ListShards")
        said = counterpart.run(server, tmp_path, "orders", str(BATCHES), str(len(REFUSALS)))
        calls = server.calls()
    seen = json.loads(said)
    record_property("sdk", seen.pop("sdk"))
    assert seen == {**CONVERSATION, "refused": REFUSALS}
    assert (calls.failed("ListShards"), calls.count("ListShards")) == (1, 2)


def name_of(error: str) -> str:
    """What a code and the classes that SDKs make of it have in common."""
    return error.lower().removesuffix("exception")
