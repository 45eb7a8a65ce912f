"""How to reach AWS: one frozen value that builds clients by boto3's own rules.

boto3's credential chain, regions and endpoint variables (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS`, ...) count
wherever nothing is set here. The SDK's own retries are off: `penstock.aws.calls` does the retrying, with full jitter, a
bound and a deadline, and by what each error means.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Final

import botocore.config
import botocore.credentials
import botocore.exceptions as sdk
import botocore.session

import penstock
from penstock.core.backoff import Backoff, RetryPlan
from penstock.errors import OptionError

_lock = threading.Lock()
_clients: Final[dict[tuple[str, AwsOptions], Any]] = {}


def _forget_after_fork() -> None:
    """Begin anew in a forked child: the parent's connections are not its own, and the lock may be held for ever."""
    global _lock  # noqa: PLW0603 - the one lock of the process, which is another process now
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """Where and as whom; None follows boto3.

    Args:
        region: Region name.
        endpoint_url: Endpoint of every service but STS.
        profile: Profile of the shared configuration.
        access_key_id: With `secret_access_key`: fixed credentials.
        secret_access_key: Never shown.
        session_token: Of temporary credentials; never shown.
        role_arn: Role to assume; its credentials are renewed by themselves.
        role_session_name: Session name of the role.
        external_id: External id of the role.
        sts_endpoint_url: Endpoint of STS.
        connect_timeout_s: Time for a connection.
        read_timeout_s: Time for an answer.
        attempts_max: Attempts of one call, the first included.
        retry_base_s: Ceiling of the first pause; it doubles from attempt to attempt.
        retry_cap_s: Highest ceiling.
        deadline_s: Time in which the last attempt of a call begins; its own timeouts come on top.
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
    connection_count_max: int = 64

    def __post_init__(self) -> None:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise OptionError("access_key_id and secret_access_key go together: set both or neither")
        if self.attempts_max < 1:
            raise OptionError(f"attempts_max is {self.attempts_max}; at least one attempt is needed")
        for name in ("connect_timeout_s", "read_timeout_s", "retry_base_s", "retry_cap_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def retry_plan(self) -> RetryPlan:
        """When a failed call is tried again."""
        # One of the two may be set without the other; the cap is what was promised.
        backoff = Backoff(min(self.retry_base_s, self.retry_cap_s), self.retry_cap_s)
        return RetryPlan(backoff, self.attempts_max, self.deadline_s)

    def __repr__(self) -> str:
        """Show nothing that is secret."""
        return (
            f"AwsOptions(region={self.region!r}, endpoint_url={self.endpoint_url!r}, profile={self.profile!r}, "
            f"role_arn={self.role_arn!r}, fixed_credentials={self.access_key_id is not None})"
        )


def client_for(service: str, options: AwsOptions) -> Any:
    """Give the process's client of a service, made on first use; safe from several threads and after a fork.

    Raises:
        OptionError: There is no region, or the region or endpoint cannot be one.
    """
    key = (service, options)
    client = _clients.get(key)
    if client is not None:
        return client
    with _lock:
        client = _clients.get(key)
        if client is None:
            try:
                client = _make_client(service, options)
            except sdk.NoRegionError as error:
                raise OptionError(
                    f"no region for {service}: set the region option, AWS_REGION or the profile's region"
                ) from error
            except (sdk.InvalidRegionError, ValueError) as error:
                raise OptionError(f"cannot reach {service} with {options!r}: {error}") from error
            _clients[key] = client
        return client


def _make_client(service: str, options: AwsOptions) -> Any:
    from penstock.aws.data_plane import install_parser, keep_milliseconds, send_encoded

    session = botocore.session.Session(profile=options.profile)
    if options.access_key_id is not None and options.secret_access_key is not None:
        session.set_credentials(options.access_key_id, options.secret_access_key, options.session_token)
    if options.role_arn is not None:
        session = _assume_role(session, options, options.role_arn)
    install_parser(session)
    config = botocore.config.Config(
        region_name=options.region,
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connection_count_max,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra=f"penstock/{penstock.__version__}",
    )
    client = session.create_client(
        service, region_name=options.region, endpoint_url=options.endpoint_url, config=config
    )
    if service == "kinesis":
        keep_milliseconds(client)
        send_encoded(client)
    return client


def _assume_role(session: Any, options: AwsOptions, role_arn: str) -> Any:
    """Give a session whose credentials are a role's, renewed before they expire."""
    extra = {"RoleSessionName": options.role_session_name}
    if options.external_id is not None:
        extra["ExternalId"] = options.external_id

    def make_sts(service_name: str, **arguments: Any) -> Any:
        arguments.setdefault("region_name", options.region)
        if options.sts_endpoint_url is not None:
            arguments["endpoint_url"] = options.sts_endpoint_url
        return session.create_client(service_name, **arguments)

    fetcher = botocore.credentials.AssumeRoleCredentialFetcher(
        client_creator=make_sts,
        source_credentials=session.get_credentials(),
        role_arn=role_arn,
        extra_args=extra,
    )
    assumed: Any = botocore.session.Session(profile=options.profile)
    assumed._credentials = botocore.credentials.DeferredRefreshableCredentials(  # noqa: SLF001 - botocore's own way in
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return assumed
