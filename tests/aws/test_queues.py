"""The queues port over boto3: an SDK without the operations, the fast data plane, answers that leave entries out."""

import botocore.loaders
import pytest

from penstock import QueueConsumer
from penstock.aws import connection
from penstock.aws.aws_options import AwsOptions
from penstock.aws.queues import AwsQueues
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.errors import UsageError

OPTIONS = AwsOptions(
    region="us-east-1", access_key_id="x", secret_access_key="x", endpoint_url="http://127.0.0.1:9"
)
ARN = "arn:aws:kinesis:us-east-1:123456789012:queue/0123456789abcdef"


class OldClient:
    """A client of a botocore that has no queues."""


class Client:
    def receive_queue_records(self, **_):
        raise AssertionError

    def acknowledge_queue_records(self, QueueARN, Entries):  # noqa: N803 - the service's names
        first, second, *_ = Entries
        return {
            "Successful": [first],
            "Failed": [
                {**second, "ErrorCode": "ThrottlingException"},
                {"ReceiptHandle": "c", "ErrorCode": "ResourceNotFoundException", "ErrorMessage": "gone"},
                {"ReceiptHandle": "d", "ErrorCode": "NeverHeardOfException"},
            ],
        }


def test_an_sdk_without_queues_is_named_with_the_version_to_install(monkeypatch):
    monkeypatch.setattr("penstock.aws.queues.client_for", lambda *_: OldClient())
    consumer = QueueConsumer(ARN, lambda _: None, region="us-east-1")
    with pytest.raises(
        UsageError, match=r"does not know the queues of Kinesis: pip install 'boto3>=1\.44\.8'"
    ):
        consumer.run()


def test_an_older_model_opens_a_client_all_the_same(monkeypatch):
    load = botocore.loaders.Loader.load_service_model

    def without_queues(self, service_name, *arguments, **more):
        model = dict(load(self, service_name, *arguments, **more))
        if "operations" in model:
            model["operations"] = {
                name: each for name, each in model["operations"].items() if "Queue" not in name
            }
        return model

    monkeypatch.setattr(botocore.loaders.Loader, "load_service_model", without_queues)
    monkeypatch.setattr(connection, "_clients", {})
    connection._loader.cache_clear()
    try:
        with pytest.raises(UsageError, match="does not know the queues"):
            AwsQueues(OPTIONS).describe_queue(ARN)
    finally:
        connection._loader.cache_clear()


def test_each_entry_has_an_outcome(monkeypatch):
    monkeypatch.setattr("penstock.aws.queues.client_for", lambda *_: Client())
    results = AwsQueues(OPTIONS).acknowledge(ARN, ["a", "b", "c", "d", "e"])
    assert [each.outcome for each in results] == [
        EntryOutcome.APPLIED,
        EntryOutcome.REFUSED,
        EntryOutcome.VOID,
        EntryOutcome.REFUSED,
        EntryOutcome.UNKNOWN,
    ]
