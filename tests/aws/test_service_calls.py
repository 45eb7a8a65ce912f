"""What each error of the SDK means for reads and for writes, and when a call is tried again."""

from __future__ import annotations

import dataclasses

import botocore.exceptions as sdk
import pytest
from botocore.parsers import ResponseParserError

from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.service_calls import call, translate_error
from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    Rejected,
    ResourceBusy,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)

QUICK = AwsOptions(retry_base_s=0.001, retry_cap_s=0.001, attempts_max=4, deadline_s=60)


def refusal(code, status=400):
    return sdk.ClientError(
        {"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "PutRecords",
    )


@pytest.mark.parametrize(
    ("code", "status", "read", "write"),
    [
        ("ProvisionedThroughputExceededException", 400, Throttled, Throttled),
        ("LimitExceededException", 400, Throttled, Throttled),
        ("ThrottlingException", 400, Throttled, Throttled),
        ("RequestLimitExceeded", 400, Throttled, Throttled),
        ("KMSThrottlingException", 400, Throttled, Throttled),
        ("InternalFailure", 500, Unavailable, UnknownOutcome),
        ("InternalServerError", 500, Unavailable, UnknownOutcome),
        ("ServiceUnavailable", 503, Unavailable, UnknownOutcome),
        ("", 502, Unavailable, UnknownOutcome),
        ("502", 502, Unavailable, UnknownOutcome),
        ("408", 408, Unavailable, UnknownOutcome),
        ("429", 429, Throttled, Throttled),
        ("SomethingNew", 504, Unavailable, UnknownOutcome),
        ("ExpiredIteratorException", 400, ExpiredIterator, ExpiredIterator),
        ("ResourceNotFoundException", 400, NotFound, NotFound),
        ("ResourceInUseException", 400, ResourceBusy, ResourceBusy),
        ("AccessDeniedException", 400, AccessDenied, AccessDenied),
        ("UnrecognizedClientException", 400, AccessDenied, AccessDenied),
        ("ExpiredTokenException", 400, AccessDenied, AccessDenied),
        ("InvalidSignatureException", 400, AccessDenied, AccessDenied),
        ("KMSDisabledException", 400, AccessDenied, AccessDenied),
        ("KMSInvalidStateException", 400, AccessDenied, AccessDenied),
        ("KMSAccessDeniedException", 400, AccessDenied, AccessDenied),
        ("KMSNotFoundException", 400, AccessDenied, AccessDenied),
        ("KMSOptInRequired", 400, AccessDenied, AccessDenied),
        ("ValidationException", 400, Rejected, Rejected),
        ("InvalidArgumentException", 400, Rejected, Rejected),
        ("com.amazonaws.kinesis#ResourceNotFoundException", 400, NotFound, NotFound),
        ("SomethingNew", 400, UnknownRefusal, UnknownRefusal),
        ("NotAuthorized", 400, AccessDenied, AccessDenied),
        ("SomethingNew", 403, AccessDenied, AccessDenied),
        ("", 400, UnknownRefusal, UnknownRefusal),
        ("404", 404, UnknownRefusal, UnknownRefusal),
        ("403", 403, AccessDenied, AccessDenied),
    ],
)
def test_a_code_means_the_same_everywhere_and_a_failed_write_is_unknown(code, status, read, write):
    for is_write, kind in ((False, read), (True, write)):
        ours = translate_error(refusal(code, status), "PutRecords", "stream orders", is_write=is_write)
        assert type(ours) is kind
        assert str(ours).startswith("PutRecords on stream orders: ")
        assert (ours.operation, ours.resource) == ("PutRecords", "stream orders")


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        (sdk.EndpointConnectionError(endpoint_url="http://x"), Unavailable, Unavailable),
        (sdk.ConnectTimeoutError(endpoint_url="http://x"), Unavailable, Unavailable),
        (sdk.ReadTimeoutError(endpoint_url="http://x"), Unavailable, UnknownOutcome),
        (sdk.ConnectionClosedError(endpoint_url="http://x"), Unavailable, UnknownOutcome),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), Unavailable, UnknownOutcome),
        (ResponseParserError("no document"), Unavailable, UnknownOutcome),
        (ConnectionResetError("reset"), Unavailable, UnknownOutcome),
        (sdk.NoCredentialsError(), AccessDenied, AccessDenied),
        (sdk.ProfileNotFound(profile="work"), AccessDenied, AccessDenied),
        (sdk.ParamValidationError(report="wrong"), Rejected, Rejected),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_an_error_before_sending_did_nothing_and_one_after_it_is_unknown_for_a_write(error, read, write):
    assert type(translate_error(error, "Op", "stream s", is_write=False)) is read
    assert type(translate_error(error, "Op", "stream s", is_write=True)) is write


def test_the_faults_of_a_parameter_are_on_one_line():
    error = sdk.ParamValidationError(report="Missing a\nUnknown b")
    ours = translate_error(error, "PutRecords", "orders", is_write=True)
    assert str(ours) == "PutRecords on orders: Parameter validation failed: Missing a; Unknown b"


def test_the_lines_of_a_credential_process_are_on_one_line():
    printed = "\nThe SSO session has expired.\nRun aws sso login.\n"
    error = sdk.CredentialRetrievalError(provider="custom-process", error_msg=printed)
    text = str(translate_error(error, "PutRecords", "orders", is_write=True))
    assert "custom-process: The SSO session has expired.; Run aws sso login; check the credentials" in text


def test_the_way_out_is_named():
    denied = translate_error(refusal("AccessDeniedException"), "GetRecords", "stream s", is_write=False)
    assert str(denied).endswith("check the credentials, the role and its policy")
    expired = translate_error(refusal("ExpiredTokenException"), "GetRecords", "stream s", is_write=False)
    assert "; log in again, or fetch new keys" in str(expired)
    unknown = translate_error(sdk.NoCredentialsError(), "GetRecords", "stream s", is_write=False)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(unknown)
    assert 'eval "$(penstock local --export)"' in str(unknown)
    other = translate_error(sdk.ProfileNotFound(profile="p"), "GetRecords", "stream s", is_write=False)
    assert "AWS_PROFILE" in str(other)
    url = "http://127.0.0.1:9/"
    closed = translate_error(
        sdk.EndpointConnectionError(endpoint_url=url), "GetRecords", "stream s", is_write=False
    )
    assert f'"{url}"; check the region and the endpoint' in str(closed)


def test_a_key_that_cannot_be_used_is_named_and_not_the_role():
    ours = translate_error(refusal("KMSInvalidStateException"), "GetRecords", "stream s", is_write=False)
    assert "check the KMS key" in str(ours)
    assert "role" not in str(ours)


def test_a_refusal_without_a_code_names_who_may_have_answered():
    ours = translate_error(refusal("404", 404), "GetRecords", "stream s", is_write=False)
    assert "404" in str(ours)
    assert "what answers in between" in str(ours)


def test_a_refusal_that_may_never_pass_is_in_the_log_before_the_deadline(caplog):
    caplog.set_level("WARNING")
    options = dataclasses.replace(QUICK, attempts_max=9)
    for code in ("SomethingNew", "InternalFailure"):
        with pytest.raises((UnknownRefusal, Unavailable)):
            call(Sender(refusal(code)), "Op", "stream s", options)
    assert [each.getMessage().partition(",")[0] for each in caplog.records] == ["attempt 5 failed"]
    assert "SomethingNew" in caplog.text


def test_an_unknown_refusal_is_tried_again_inside_the_bound_and_named():
    sender = Sender(refusal("SomethingNew"), refusal("404", 404), "done")
    assert call(sender, "Op", "stream s", QUICK) == "done"
    sender = Sender(refusal("SomethingNew"))
    with pytest.raises(UnknownRefusal, match="SomethingNew"):
        call(sender, "Op", "stream s", QUICK)
    assert sender.count == 4


def test_a_sentence_of_the_service_is_followed_by_the_way_out_as_one_sentence():
    error = sdk.ClientError(
        {"Error": {"Code": "ResourceNotFoundException", "Message": "Stream s not found."}}, "ListShards"
    )
    assert "not found; check the name, the region and" in str(
        translate_error(error, "ListShards", "stream s", is_write=False)
    )
    options = AwsOptions(region="eu-west-1")
    client_for("kinesis", options)
    asked = translate_error(error, "ListShards", "stream s", is_write=False, options=options)
    assert "not found; check the name, the region (eu-west-1) and" in str(asked)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
        ),
        (
            "InvalidSignatureException",
            "Signature expired: 20301123T000000Z is now earlier than 20301123T005500Z",
        ),
        ("InvalidSignatureException", "Signature not yet current: 20301123T013000Z is still later than"),
    ],
)
def test_a_clock_that_is_wrong_is_named_and_not_the_credentials(code, message):
    error = sdk.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        "GetRecords",
    )
    ours = translate_error(error, "GetRecords", "stream s", is_write=False)
    assert "check this machine's clock" in str(ours)
    assert "policy" not in str(ours)


def test_a_redirection_says_where_to():
    answered = {"HTTPStatusCode": 301, "HTTPHeaders": {"location": "https://portal.example/"}}
    error = sdk.ClientError({"Error": {"Code": "301", "Message": ""}, "ResponseMetadata": answered}, "Op")
    ours = translate_error(error, "Op", "stream s", is_write=True)
    assert type(ours) is UnknownRefusal
    assert "redirected to https://portal.example/" in str(ours)
    assert "check the endpoint" in str(ours)


def test_a_page_that_somebody_between_answers_with_is_shown_in_part():
    error = sdk.ClientError(
        {"Error": {"Code": "503", "Message": "<p>" * 100_000}, "ResponseMetadata": {"HTTPStatusCode": 503}},
        "Op",
    )
    assert len(str(translate_error(error, "Op", "stream s", is_write=False))) < 3_000


class Sender:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.count = 0

    def __call__(self):
        self.count += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_throttling_and_failures_are_tried_again_inside_the_bound():
    sender = Sender(refusal("ThrottlingException"), refusal("InternalFailure", 500), "done")
    assert call(sender, "Op", "stream s", QUICK) == "done"
    assert sender.count == 3
    sender = Sender(refusal("ThrottlingException"))
    with pytest.raises(Throttled) as caught:
        call(sender, "Op", "stream s", QUICK)
    assert sender.count == 4
    assert isinstance(caught.value.__cause__, sdk.ClientError)


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException", "ExpiredIteratorException"])
def test_what_trying_again_cannot_help_comes_out_at_once(code):
    sender = Sender(refusal(code))
    with pytest.raises((Rejected, AccessDenied, ExpiredIterator)):
        call(sender, "Op", "stream s", QUICK)
    assert sender.count == 1


def test_credentials_that_were_issued_expired_are_an_error_of_access():
    error = RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired.")
    with pytest.raises(AccessDenied, match="Check what issues them"):
        call(Sender(error), "GetRecords", "stream s", QUICK)
    with pytest.raises(RuntimeError, match="another"):
        call(Sender(RuntimeError("another")), "GetRecords", "stream s", QUICK)


def test_a_write_whose_outcome_is_unknown_is_not_sent_again():
    sender = Sender(sdk.ReadTimeoutError(endpoint_url="http://x"))
    with pytest.raises(UnknownOutcome):
        call(sender, "Op", "stream s", QUICK, is_write=True)
    assert sender.count == 1


def test_no_attempt_begins_after_the_deadline(monkeypatch):
    now_s = [0.0]
    pauses = []

    def sleep(duration_s):
        pauses.append(duration_s)
        now_s[0] += duration_s

    monkeypatch.setattr(service_calls.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(service_calls.time, "sleep", sleep)
    monkeypatch.setattr(service_calls.random, "random", lambda: 0.999)
    options = AwsOptions(retry_base_s=1, retry_cap_s=8, attempts_max=100, deadline_s=20)
    with pytest.raises(Throttled):
        call(Sender(refusal("ThrottlingException")), "Op", "stream s", options)
    assert sum(pauses) == pytest.approx(20)
    assert pauses[:4] == pytest.approx([0.999, 1.998, 3.996, 7.992])
