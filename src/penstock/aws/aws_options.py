"""How to reach AWS, as one frozen value. Knows nothing of the SDK, so that reading options does not load it."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.endpoint import has_user, without_user
from penstock.core.keyword_options import check_above_zero, check_names, check_range, check_types, field_names
from penstock.errors import OptionError

_log: Final = logging.getLogger("penstock.aws")
_ROLE: Final = re.compile(r"arn:[a-z-]+:iam::\d{12}:role/\S+")


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """The region, endpoints, credentials and limits of calls to AWS. None leaves a value to boto3.

    Args:
        endpoint_url: Endpoint of every service but STS and S3, or of Kinesis alone if it is AWS's own. A user and a password in it are left out.
        profile: Profile of the shared configuration.
        access_key_id: With `secret_access_key`: fixed credentials.
        secret_access_key: Never shown.
        session_token: Session token of temporary credentials; never shown.
        role_arn: Role to assume; its credentials are renewed automatically.
        connect_timeout_s: Time for a connection.
        read_timeout_s: Longest wait for the next byte of an answer. A whole answer may take four times as long.
        attempts_max: Attempts of one call, the first included.
        retry_base_s: Ceiling of the first pause; it doubles from attempt to attempt.
        retry_cap_s: Highest ceiling.
        deadline_s: Time in which the last attempt of a call begins. The timeouts of that attempt come on top.
        connection_count_max: Connections kept per client.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    role_arn: str | None = None
    role_session_name: str = "penstock"
    external_id: str | None = None
    sts_endpoint_url: str | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts_max: int = 11
    retry_base_s: float = 0.1
    retry_cap_s: float = 5.0
    deadline_s: float = 60.0
    connection_count_max: int = 256

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("endpoint_url", "sts_endpoint_url"):
            url = getattr(self, name)
            if url is not None and has_user(url):
                object.__setattr__(self, name, drop_user(url))
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise OptionError("access_key_id and secret_access_key go together: set both or neither")
        # Without the options that they belong to, these would be dropped, and the calls made under another identity.
        if self.session_token is not None and self.access_key_id is None:
            raise OptionError(
                "session_token (Spark: sessionToken) is set without access_key_id and secret_access_key (Spark: awsAccessKeyId and "
                "awsSecretKey): set the keys that it belongs to, or remove it"
            )
        if self.external_id is not None and self.role_arn is None:
            raise OptionError(
                "external_id (Spark: roleExternalId) is set without role_arn (Spark: roleArn): name the role to assume, or remove it"
            )
        if self.role_arn is not None and not _ROLE.fullmatch(self.role_arn):
            raise OptionError(
                f"role_arn (Spark: roleArn) is {self.role_arn!r}; expected arn:aws:iam::123456789012:role/NAME"
            )
        check_range(self, 1, None, "attempts_max")
        check_above_zero(
            self, "connect_timeout_s", "read_timeout_s", "retry_base_s", "retry_cap_s", "deadline_s"
        )

    @property
    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        # If only one of the two is set, the base may exceed the cap. The cap counts.
        return Backoff(min(self.retry_base_s, self.retry_cap_s), self.retry_cap_s)

    @property
    def retry_plan(self) -> RetryPlan:
        """When a failed call is tried again."""
        return RetryPlan(self.backoff, self.attempts_max, self.deadline_s)

    def __repr__(self) -> str:
        """Show nothing that is secret."""
        return (
            f"AwsOptions(region={self.region!r}, endpoint_url={self.endpoint_url!r}, profile={self.profile!r}, "
            f"role_arn={self.role_arn!r}, fixed_credentials={self.access_key_id is not None})"
        )


def parse_connection(fields: Mapping[str, Any], taken_names: Collection[str] = ()) -> AwsOptions:
    """Return the options of a connection that is given field by field.

    Args:
        fields: Fields of `AwsOptions`.
        taken_names: Names of fields that the caller has taken out before; an error lists them with the others.

    Raises:
        OptionError: A field is unknown or has a bad value.
    """
    check_names(fields, field_names(AwsOptions) | set(taken_names), "connection option")
    return AwsOptions(**fields)


def drop_user(url: str) -> str:
    """Return an endpoint without its user and password, and warn once that they are left out."""
    clean = without_user(url)
    _warn_of_user(clean)
    return clean


@functools.cache
def _warn_of_user(clean_url: str) -> None:
    _log.warning(
        "the endpoint %s is given with a user and a password, which the service's protocol has no use for: they are left "
        "out. Credentials have options of their own",
        clean_url,
    )
