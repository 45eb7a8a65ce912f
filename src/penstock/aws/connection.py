"""Clients of AWS, built by boto3's own rules from `AwsOptions` and shared by the process.

boto3's credential chain, regions and endpoint variables (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS`, ...) apply if nothing
is set here, and `AWS_REGION` counts before `AWS_DEFAULT_REGION`. The SDK's own retries are off: `penstock.aws.service_calls`
does the retrying, with full jitter, a bound and a deadline, and by the meaning of each error.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections import deque
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import botocore.config
import botocore.credentials
import botocore.exceptions as sdk
import botocore.session

from penstock._version import __version__
from penstock.aws.aws_options import AwsOptions, drop_user
from penstock.aws.config_files import check_forms, unread_files
from penstock.aws.connecting import proxy_for, trusted_file
from penstock.aws.credential_errors import credentials_error
from penstock.core.endpoint import has_user, kinesis_region, without_user
from penstock.errors import OptionError, PenstockError

if TYPE_CHECKING:
    from penstock.aws.pooled_exchange import PooledExchange

_log: Final = logging.getLogger("penstock.aws")
_RENEWALS_APART_S: Final = 1.0
_KEYS_REMEMBERED: Final = 8
_ENDPOINTS_REMEMBERED: Final = 1_000  # more than a process has producers: to read a profile takes 20 ms

_VARIABLES: Final = (
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_CA_BUNDLE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_ACCOUNT_ID_ENDPOINT_MODE",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Environment variables on which a client depends, beside its options."""

_lock = threading.RLock()  # botocore logs while a client is made, and a log handler may need a client itself
_clients: Final[dict[tuple[str, AwsOptions, int], Any]] = {}
"""The clients by service, options and a hash of the environment: a program that changes its environment, as tests do, gets another one."""
_renewals: Final[dict[AwsOptions, tuple[int, float]]] = {}
"""By options: how often credentials were fetched again, and when last (monotonic seconds)."""


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the connections belong to the parent, and the lock may never be released."""
    global _lock  # noqa: PLW0603 - the one lock of the process, which is another process now
    _lock = threading.RLock()
    _clients.clear()
    _renewals.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


_REMEDY: Final = (
    "check the region, the option endpoint_url (endpointUrl in Spark, --endpoint-url on the command line), AWS_ENDPOINT_URL "
    "and its forms for single services; an endpoint begins with https:// or http://"
)


def client_for(service: str, options: AwsOptions) -> Any:
    """Return the process's client of a service, created on first use; safe from several threads and after a fork.

    Raises:
        OptionError: There is no region, or the region, the endpoint or the environment's proxy is invalid.
        CredentialRetrievalError: The provider of the credentials failed.
    """
    key = (service, options, _environment_hash(service))
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
                    f"no region for {service}: set the option region (--region on the command line), AWS_REGION, AWS_DEFAULT_REGION "
                    f"or the region of the profile{unread_files()}"
                ) from error
            except Exception as error:
                credentials_fault = credentials_error(error)
                if credentials_fault is not None:
                    raise credentials_fault from None
                is_of_address = isinstance(error, (sdk.InvalidRegionError, ValueError))
                if isinstance(error, PenstockError) or not is_of_address:
                    raise
                if has_user(str(error)):  # the endpoint may hold a password: hide the cause too
                    raise OptionError(
                        f"no client for {service}: the endpoint in the environment cannot be one; {_REMEDY}"
                    ) from None
                raise OptionError(f"no client for {service}: {error}; {_REMEDY}") from error
            if _environment_hash(service) != key[2]:
                return client  # the environment changed meanwhile: the client may mix both, so it is not kept
            for old in [old for old in _clients if old[:2] == key[:2]]:
                del _clients[old]  # made for another environment
            _clients[key] = client
        return client


def client_region(options: AwsOptions) -> str | None:
    """Return the region of the process's clients for these options, or None if there are none yet."""
    regions = (
        client.meta.region_name for (_, made_of, _), client in list(_clients.items()) if made_of == options
    )
    return next(regions, None)


def _environment_hash(service: str) -> int:
    get = os.environ.get
    return hash((get(f"AWS_ENDPOINT_URL_{service.upper()}"), *map(get, _VARIABLES)))


def count_renewals(options: AwsOptions) -> int:
    """Return how often this process has renewed the credentials; `renew_credentials` takes this number."""
    return _renewals.get(options, (0, 0.0))[0]


def renew_credentials(options: AwsOptions, renewal_count: int) -> bool:
    """Drop the clients of these options, so that the next one fetches its credentials again; safe from several threads.

    Args:
        renewal_count: The result of `count_renewals` before the refused call, so that one renewal serves all calls that were refused with the same credentials.

    Returns:
        False if a renewal cannot help: the credentials are fixed, or were fetched a moment ago.
    """
    if options.access_key_id is not None and options.role_arn is None:
        return False
    with _lock:
        count, renewed_s = _renewals.get(options, (0, float("-inf")))
        # Two calls were refused with the same old credentials, and the other one has renewed them since.
        if count != renewal_count:
            return True
        now_s = time.monotonic()
        if now_s - renewed_s < _RENEWALS_APART_S:
            return False
        _renewals[options] = (count + 1, now_s)
        for key in [key for key in _clients if key[1] == options]:
            del _clients[key]
        return True


@lru_cache(maxsize=4)
def _loader(further_folders: str | None) -> Any:
    """Return the loader of the SDK's descriptions, also of those in further folders. All clients share it, so each file is read once."""
    from penstock.aws.service_descriptions import DescriptionLoader

    return DescriptionLoader(further_folders)


def _make_client(service: str, options: AwsOptions) -> Any:
    from penstock.aws.data_plane import (
        install_parser,
        intercept_subscriptions,
        keep_milliseconds,
        send_encoded,
    )
    from penstock.aws.data_plane_client import OPERATIONS, DataPlaneClient

    session = new_session(options)
    if options.access_key_id is not None and options.secret_access_key is not None:
        session.set_credentials(options.access_key_id, options.secret_access_key, options.session_token)
    role: _AssumedRole | None = None
    if options.role_arn is not None:
        role = _AssumedRole(session, options, options.role_arn)
        session = role.session
    install_parser(session)
    config = botocore.config.Config(
        region_name=options.region,
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connection_count_max,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra=f"penstock/{__version__}",
    )
    # The endpoint of the options is for the stream: a bucket is elsewhere, also with an embedded Kinesis. Connectors for the JVM need
    # the endpoint of AWS's own Kinesis, which serves no lease table.
    is_elsewhere = service == "s3" or (
        service != "kinesis" and kinesis_region(options.endpoint_url) is not None
    )
    endpoint_url = None if is_elsewhere else options.endpoint_url
    client = _create_client(
        session, service, region_name=options.region, endpoint_url=endpoint_url, config=config
    )
    if service == "kinesis":
        keep_milliseconds(client)
        send_encoded(client)
        intercept_subscriptions(client)
    if role is not None:
        client.meta.events.register("before-send", role.check_signature)
    if service not in OPERATIONS:
        return client
    return DataPlaneClient(client, session.get_credentials(), partial(_open_exchange, session, options))


def _open_exchange(session: Any, options: AwsOptions, url: str) -> PooledExchange | None:
    """Return an exchange with an address, or None if there is a proxy in between or no certificates can be read."""
    from penstock.aws.pooled_exchange import PooledExchange

    if proxy_for(url):
        return None
    tls = None
    if urlsplit(url).scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=trusted_file(session))
        except OSError as error:
            _log.debug("boto3 makes each call to %s: %r", url, error)
            return None
    return PooledExchange(
        url,
        connect_timeout_s=options.connect_timeout_s,
        read_timeout_s=options.read_timeout_s,
        idle_max=options.connection_count_max,
        tls=tls,
    )


def new_session(options: AwsOptions) -> Any:
    """Return a session in the region of the options or of AWS_REGION.

    boto3 itself reads AWS_DEFAULT_REGION only. Every other SDK, and the AWS CLI, reads AWS_REGION first.
    """
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    check_forms(session, has_keys=options.access_key_id is not None)
    region = _configured_region(options)
    if region:
        session.set_config_variable("region", region)
    return session


def _configured_region(options: AwsOptions) -> str | None:
    get = os.environ.get
    named_region = options.region or kinesis_region(options.endpoint_url)
    return named_region or get("AWS_REGION") or get("AWS_DEFAULT_REGION") or None


def environment_endpoint(options: AwsOptions) -> str | None:
    """Return the endpoint that the environment or its profile names for Kinesis, without a user. None if it names none, or the options do."""
    url = _configured_kinesis_endpoint(options, _environment_hash("kinesis"))
    return without_user(url) if url else None


@lru_cache(maxsize=_ENDPOINTS_REMEMBERED)
def _configured_kinesis_endpoint(options: AwsOptions, _environment: int) -> str | None:
    return None if options.endpoint_url else _configured_endpoints(options)[0]


def with_environment(options: AwsOptions) -> AwsOptions:
    """Return options that name the region and the endpoint of the environment as it is now.

    A worker with these options keeps its endpoint if the program changes the environment, as a test does when it ends. Credentials
    are read from the environment whenever they are needed.
    """
    endpoint_url = options.endpoint_url or _configured_endpoints(options)[1]
    return replace(options, region=_configured_region(options), endpoint_url=endpoint_url or None)


def _configured_endpoints(options: AwsOptions) -> tuple[str | None, str | None]:
    """Return two endpoints that the environment or the profile names, in the SDK's order, each perhaps None.

    The first is for Kinesis. The second is for all services; it is None if any service has an endpoint of its own.
    """
    get = os.environ.get
    try:
        session = new_session(options)
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None, None
        profile = session.get_scoped_config()
        services = session.full_config.get("services", {}).get(profile.get("services"), {})
    except sdk.BotoCoreError as error:  # the first call fails of the same, and names the way out
        _log.debug("the configuration cannot be read: %s", error)
        return None, None
    for_all = get("AWS_ENDPOINT_URL") or profile.get("endpoint_url")
    if get("AWS_ENDPOINT_URL"):  # counts before the profile's services
        services = {}
    of_kinesis = get("AWS_ENDPOINT_URL_KINESIS") or services.get("kinesis", {}).get("endpoint_url")
    is_alone = not services and not any(name.startswith("AWS_ENDPOINT_URL_") for name in os.environ)
    return of_kinesis or for_all, for_all if is_alone else None


def _create_client(session: Any, service: str, **arguments: Any) -> Any:
    """Return a client. Refuse an invalid proxy, and leave out a user and password in the environment's endpoint."""
    client = session.create_client(service, **arguments)
    endpoint_url = str(client.meta.endpoint_url)
    proxy_for(endpoint_url)
    if not has_user(endpoint_url):
        return client
    return session.create_client(service, **{**arguments, "endpoint_url": drop_user(endpoint_url)})


class _AssumedRole:
    """A session with the credentials of a role, renewed before they expire. A request signed with other credentials is not sent.

    Args:
        source: The session whose credentials assume the role.

    Raises:
        OptionError: This botocore does not accept the role's credentials.
    """

    def __init__(self, source: Any, options: AwsOptions, role_arn: str) -> None:
        extra = {"RoleSessionName": options.role_session_name}
        if options.external_id is not None:
            extra["ExternalId"] = options.external_id

        def make_sts(service_name: str, **arguments: Any) -> Any:
            arguments.setdefault("region_name", options.region)
            if options.sts_endpoint_url is not None:
                arguments["endpoint_url"] = options.sts_endpoint_url
            return _create_client(source, service_name, **arguments)

        fetcher = botocore.credentials.AssumeRoleCredentialFetcher(
            client_creator=make_sts,
            source_credentials=source.get_credentials(),
            role_arn=role_arn,
            extra_args=extra,
        )
        self._role_arn = role_arn
        self._keys: deque[str] = deque(maxlen=_KEYS_REMEMBERED)

        def fetch() -> Any:
            found = fetcher.fetch_credentials()
            self._keys.append(found["access_key"])
            return found

        credentials = botocore.credentials.DeferredRefreshableCredentials(
            method="assume-role", refresh_using=fetch
        )
        self.session: Any = new_session(options)
        self.session.register_component(
            "credential_provider", SimpleNamespace(load_credentials=lambda: credentials)
        )
        if self.session.get_credentials() is not credentials:
            raise OptionError(
                f"roleArn={role_arn}: botocore {botocore.__version__} takes no credentials from outside, and without the "
                "role requests would be signed with other credentials; use a botocore version that this one was tested with, "
                "or a profile with role_arn"
            )

    def check_signature(self, request: Any, **_: Any) -> None:
        """Refuse to send a request that was signed with any key but the role's.

        Raises:
            CredentialRetrievalError: Another key signed it. This is botocore's error for missing credentials.
        """
        header = request.headers.get("Authorization", b"")
        text = header.decode("latin-1") if isinstance(header, bytes) else str(header)
        key = text.partition("Credential=")[2].partition("/")[0]
        if key not in self._keys:
            raise sdk.CredentialRetrievalError(
                provider="assume-role",
                error_msg=f"the request was not signed by the role {self._role_arn}; it was not sent",
            )
