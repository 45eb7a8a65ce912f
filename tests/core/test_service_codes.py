"""What error codes mean."""

from __future__ import annotations

import pytest

from penstock.core.service_codes import STALE_CREDENTIALS, kind_of
from penstock.errors import AccessDenied, NotFound, Throttled, Unavailable


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
        ("ValidationException", None),
        ("InvalidArgumentException", None),
        ("NobodyHasHeardOfIt", None),
        ("", None),
    ],
)
def test_a_code_has_one_meaning(code, kind):
    assert kind_of(code) is kind


def test_credentials_that_are_taken_no_more_are_a_matter_of_access():
    assert {kind_of(code) for code in STALE_CREDENTIALS} == {AccessDenied}
