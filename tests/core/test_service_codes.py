"""What error codes mean."""

from __future__ import annotations

import botocore.session
import pytest

from penstock.core.service_codes import STALE_CREDENTIALS, kind_of
from penstock.errors import AccessDenied, NotFound, Rejected, ResourceBusy, Throttled, Unavailable

CALLS = {
    "kinesis": [
        "DescribeStreamSummary",
        "ListShards",
        "GetShardIterator",
        "GetRecords",
        "PutRecords",
        "RegisterStreamConsumer",
        "DescribeStreamConsumer",
        "ListStreamConsumers",
        "DeregisterStreamConsumer",
        "SubscribeToShard",
    ],
    "dynamodb": [
        "BatchGetItem",
        "CreateTable",
        "DeleteItem",
        "DescribeTable",
        "GetItem",
        "PutItem",
        "Query",
        "Scan",
        "UpdateContinuousBackups",
        "UpdateItem",
    ],
    "glue": ["CreateSchema", "GetSchemaByDefinition", "GetSchemaVersion", "RegisterSchemaVersion"],
    "cloudwatch": ["GetMetricData", "PutMetricData"],
}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ProvisionedThroughputExceededException", Throttled),
        ("Throttling", Throttled),
        ("ThrottlingException", Throttled),
        ("ThrottledException", Throttled),
        ("RequestThrottledException", Throttled),
        ("KMSThrottlingException", Throttled),
        ("InternalFailure", Unavailable),
        ("InternalFailureException", Unavailable),
        ("InternalServerError", Unavailable),
        ("InternalServerException", Unavailable),
        ("InternalError", Unavailable),
        ("KMSInternalException", Unavailable),
        ("ServiceUnavailable", Unavailable),
        ("ServiceUnavailableException", Unavailable),
        ("KMSDisabledException", AccessDenied),
        ("ResourceNotFoundException", NotFound),
        ("ValidationException", Rejected),
        ("InvalidArgumentException", Rejected),
        ("NobodyHasHeardOfIt", None),
        ("", None),
    ],
)
def test_a_code_has_one_meaning(code, kind):
    assert kind_of(code) is kind


COMMON: dict[str, type] = {
    "AccessDeniedException": AccessDenied,
    "ExpiredTokenException": AccessDenied,
    "IncompleteSignature": AccessDenied,
    "InternalFailure": Unavailable,
    "InvalidAction": Rejected,
    "InvalidClientTokenId": AccessDenied,
    "InvalidParameterCombination": Rejected,
    "InvalidParameterValue": Rejected,
    "InvalidQueryParameter": Rejected,
    "MalformedQueryString": Rejected,
    "MissingAction": Rejected,
    "MissingAuthenticationToken": AccessDenied,
    "MissingParameter": Rejected,
    "NotAuthorized": AccessDenied,
    "OptInRequired": AccessDenied,
    "RequestExpired": AccessDenied,
    "ServiceUnavailable": Unavailable,
    "ThrottlingException": Throttled,
    "UnrecognizedClientException": AccessDenied,
    "ValidationError": Rejected,
}
"""The API references' common errors."""
IN_TRANSIT: dict[str, type] = {
    "OperationAborted": Unavailable,  # of S3
    "ReplicatedWriteConflictException": Unavailable,  # of DynamoDB's global tables
    "TransactionConflictException": Unavailable,
    "ConflictException": ResourceBusy,  # of CloudWatch
    "ResourceConflict": ResourceBusy,
    "InvalidAccessKeyId": AccessDenied,  # of S3
    "ConditionalCheckFailedException": Rejected,
    "PreconditionFailed": Rejected,
}


@pytest.mark.parametrize(("code", "kind"), {**COMMON, **IN_TRANSIT}.items())
def test_the_common_errors_are_sorted_by_what_helps(code, kind):
    assert kind_of(code) is kind


@pytest.mark.parametrize("service", ["kinesis", "dynamodb", "glue", "cloudwatch"])
def test_every_error_of_a_call_that_is_made_is_known(service):
    model = botocore.session.get_session().get_service_model(service)
    shapes = [shape for name in CALLS[service] for shape in model.operation_model(name).error_shapes]
    codes = {shape.metadata.get("error", {}).get("code", shape.name) for shape in shapes}
    assert codes
    assert {code for code in codes if kind_of(code) is None} == set()


def test_credentials_that_are_taken_no_more_are_a_matter_of_access():
    assert {kind_of(code) for code in STALE_CREDENTIALS} == {AccessDenied}
