"""A test's handle on a running server: its clients, its clock, its faults, its call log.

Everything goes over the control paths, so it does not matter whether the server runs in this process or in another
one, or was started by hand.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import urlsplit

import msgspec

from penstock_local.errors import OptionError, Unavailable
from penstock_local.faults import Fault
from penstock_local.operation_names import check_operation

if TYPE_CHECKING:
    from penstock_local.keywords import AnyShardKeywords, FaultKeywords

_CONTROL_TIMEOUT_S = 30.0
ACCESS_KEY = "local"
SECRET_KEY = "local"  # noqa: S105 - the server does not check signatures

_thread_state: Final = threading.local()
"""Holds a session of boto3 for each thread: the descriptions of services are read once, and sessions are not thread-safe."""


def _is_behind_proxy(url: str) -> bool:
    """Return whether SDKs would send requests to this server through the environment's proxy, as in many company networks."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    return bool(getproxies().get(parts.scheme)) and not proxy_bypass(parts.netloc)


@dataclass(frozen=True, slots=True)
class Calls:
    """The call log at one moment.

    Attributes:
        total: Calls per `service.operation`.
        by_shard: Per `service.operation`, calls per `stream/shard`.
        errors: Per `service.operation`, calls per error code or fault.
        recent: The last calls, oldest first.
        by_caller: Per access key id, calls per `service.operation`. The server takes any key, so a test with
            a key for each role sees the calls that the role's policy must allow.
    """

    total: Mapping[str, int]
    by_shard: Mapping[str, Mapping[str, int]]
    errors: Mapping[str, Mapping[str, int]]
    recent: list[dict[str, Any]] = field(repr=False)
    by_caller: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def count(self, operation: str, *, stream: str | None = None, shard: str | None = None) -> int:
        """Return how often an operation was called.

        Args:
            operation: Name, for instance `GetRecords` or `dynamodb.UpdateItem`. Without a service: of all services. `*`: all operations.
            stream: Only calls that touched a shard of this stream.
            shard: Only calls that touched this shard.

        Raises:
            OptionError: There is no such operation.
        """
        self._check(operation)
        if stream is None and shard is None:
            return sum(n for name, n in self.total.items() if _matches(name, operation))
        total = 0
        for name, shards in self.by_shard.items():
            for where, n in shards.items():
                its_stream, _, its_shard = where.rpartition("/")
                if _matches(name, operation) and stream in (None, its_stream) and shard in (None, its_shard):
                    total += n
        return total

    def failed(self, operation: str, code: str | None = None) -> int:
        """Return how often an operation was answered with an error or hit by a fault; with `code`, only with this one."""
        self._check(operation)
        found = [codes for name, codes in self.errors.items() if _matches(name, operation)]
        return sum(n for codes in found for its_code, n in codes.items() if code in (None, its_code))

    def _check(self, operation: str) -> None:
        if not any(_matches(name, operation) for name in self.total):
            check_operation(operation, "the calls to count are of")


def _matches(name: str, operation: str) -> bool:
    """Return whether the call `service.operation` is of this operation, which may be `*` or lack its service."""
    return operation in ("*", name, name.partition(".")[2])


class ControlClient:
    """Sends requests to the control paths of one server.

    Args:
        host: Its host name and port.
        tls: The settings that check its certificate; None: no TLS.
    """

    def __init__(self, host: str, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._tls = tls

    def ask(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        """Send one request and return its document.

        Raises:
            OptionError: The server found the request wrong.
            Unavailable: There is no server, or it did not answer in time.
        """
        connection = (
            http.client.HTTPConnection(self._host, timeout=_CONTROL_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, timeout=_CONTROL_TIMEOUT_S, context=self._tls)
        )
        try:
            body = None if document is None else msgspec.json.encode(document)
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, f"/_penstock/{path}", body, headers)
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from the embedded Kinesis at {self._host}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise OptionError(answer["error"])
        return answer


class RemoteClock:
    """The server's virtual clock."""

    def __init__(self, remote: ControlClient) -> None:
        self._remote = remote

    def now_ms(self) -> int:
        """Return the virtual time in milliseconds since the epoch."""
        return int(self._remote.ask("GET", "clock")["now_ms"])

    def now_s(self) -> float:
        """Return the virtual time in seconds since the epoch."""
        return self.now_ms() / 1000

    def advance(self, seconds: float) -> float:
        """Move the clock forwards by virtual seconds; returns the new time in seconds."""
        return int(self._remote.ask("POST", "clock", {"advance_s": seconds})["now_ms"]) / 1000


class RemoteReplay:
    """The replay of a server that was started with recordings."""

    def __init__(self, remote: ControlClient) -> None:
        self._remote = remote

    def step(self, count: int = 1) -> dict[str, Any]:
        """Move the clock to the arrival of the next records; those of one millisecond appear together.

        Args:
            count: How many such moments.

        Returns:
            The state afterwards.
        """
        return dict(self._remote.ask("POST", "replay", {"step": count}))

    def state(self) -> dict[str, Any]:
        """Return the clock, the slice, and by stream how many records there are and how many have appeared."""
        return dict(self._remote.ask("GET", "replay"))


class Faults:
    """Scripts faults. The keywords are the attributes of `Fault`: count, skip, rate, seed, stream, shard, table, ..."""

    def __init__(self, remote: ControlClient) -> None:
        self._remote = remote

    def add(self, fault: Fault) -> int:
        """Activate a fault; returns its number."""
        if not isinstance(fault, Fault):
            raise OptionError(
                f"{fault!r} is not a fault: give Fault(kind, operation, ...), or call throttle(operation, ...)"
            )
        return int(self._remote.ask("POST", "faults", asdict(fault))["number"])

    def throttle(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Refuse for the rate; in PutRecords the entries fail and the call succeeds."""
        return self.add(Fault("throttle", operation, **options))

    def partial(self, operation: str = "PutRecords", **options: Unpack[FaultKeywords]) -> int:
        """Fail a `fraction` of the entries of PutRecords; `applied=True` stores them all the same."""
        return self.add(Fault("partial", operation, **options))

    def error(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Answer an error, HTTP 500 InternalFailure unless `status` and `code` say otherwise."""
        return self.add(Fault("error", operation, **options))

    def drop_before(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Close the connection without applying the call."""
        return self.add(Fault("drop_before", operation, **options))

    def drop_after(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Apply the call, then close the connection without an answer."""
        return self.add(Fault("drop_after", operation, **options))

    def truncate(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Apply the call, then send half of the answer and close."""
        return self.add(Fault("truncate", operation, **options))

    def garbage(self, operation: str, **options: Unpack[FaultKeywords]) -> int:
        """Apply the call, then answer with bytes that are not a document."""
        return self.add(Fault("garbage", operation, **options))

    def delay(self, operation: str, seconds: float, **options: Unpack[FaultKeywords]) -> int:
        """Apply the call, and answer this many real seconds later."""
        return self.add(Fault("delay", operation, delay_s=seconds, **options))

    def stale_listing(self, operation: str = "ListShards", **options: Unpack[FaultKeywords]) -> int:
        """Show the shards as they were before the last change of topology."""
        return self.add(Fault("stale", operation, **options))

    def shuffle_listing(self, **options: Unpack[FaultKeywords]) -> int:
        """Return the shards of a listing in random order."""
        return self.add(Fault("shuffle", "ListShards", **options))

    def omit_shard(self, shard: str, **options: Unpack[AnyShardKeywords]) -> int:
        """Leave one shard out of a listing."""
        return self.add(Fault("omit", "ListShards", shard=shard, **options))

    def empty_reads(self, **options: Unpack[FaultKeywords]) -> int:
        """Answer GetRecords without records and with the same position, although there are records."""
        return self.add(Fault("empty", "GetRecords", **options))

    def in_subscription(self, kind: str, *, after_events: int = 0, **options: Unpack[FaultKeywords]) -> int:
        """Inject a fault into the event stream of a SubscribeToShard call.

        Args:
            kind: `end`, `exception`, `silence`, `reset`, `goaway`, `corrupt`, `cut` or `repeat`.
            after_events: How many events precede it.
            options: Further attributes of the fault, for instance `code` of an exception.
        """
        return self.add(Fault(kind, "SubscribeToShard", after_events=after_events, **options))

    def expire_iterators(self) -> None:
        """Expire every shard iterator that was returned so far."""
        self._remote.ask("POST", "expire", {"what": "iterators"})

    def expire_next_tokens(self) -> None:
        """Expire every NextToken that was returned so far."""
        self._remote.ask("POST", "expire", {"what": "next_tokens"})

    def active(self) -> list[dict[str, Any]]:
        """Return the active faults, each with its `number` and `hits`."""
        return list(self._remote.ask("GET", "faults"))

    def clear(self, number: int | None = None) -> None:
        """Remove one fault, or all."""
        self._remote.ask("DELETE", "faults" if number is None else f"faults?number={number}")


class Handle:
    """A running server, seen from outside.

    Args:
        endpoint_url: Its base URL, for instance `http://127.0.0.1:4567`.
        region: The region of its ARNs.
        ca_bundle: PEM file that its certificate is checked by; with TLS only.
    """

    def __init__(self, endpoint_url: str, region: str = "us-east-1", ca_bundle: str | None = None) -> None:
        self.endpoint_url = endpoint_url
        self.region = region
        self.ca_bundle = ca_bundle
        parts = urlsplit(endpoint_url)
        tls = ssl.create_default_context(cafile=ca_bundle) if parts.scheme == "https" else None
        remote = self._remote = ControlClient(parts.netloc, tls)
        self.clock: RemoteClock = RemoteClock(remote)
        self.faults: Faults = Faults(remote)
        self.replay: RemoteReplay = RemoteReplay(remote)

    def _point_to(self, other: Handle) -> None:
        """Become a handle of the same server as `other`. Called when this object has started its server."""
        Handle.__init__(self, other.endpoint_url, other.region, other.ca_bundle)

    def __getattr__(self, name: str) -> Any:
        # reached only for a missing attribute: the subclasses set all of them when they start
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}; a server has its endpoint_url, clock and faults once it was "
            "started, with start() or as a context manager"
        )

    def environ(self) -> dict[str, str]:
        """Return the environment variables that point any AWS SDK to this server."""
        found = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            # a profile of the user's may say that the endpoint above is to be ignored
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
        }
        if self.ca_bundle is not None:
            found["AWS_CA_BUNDLE"] = self.ca_bundle
            # the SDK for JavaScript looks there
            found["NODE_EXTRA_CA_CERTS"] = self.ca_bundle
        if _is_behind_proxy(self.endpoint_url):
            hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
            names = [*(hosts.replace(",", " ").split()), urlsplit(self.endpoint_url).hostname or ""]
            # Some SDKs read the one, some the other; Python reads the small one first.
            found["NO_PROXY"] = found["no_proxy"] = ",".join(names)
        return found

    def connection(self) -> dict[str, str]:
        """Return the `connection` with which Penstock's `Consumer` and `Producer` use this server."""
        return {
            "endpoint_url": self.endpoint_url,
            "region": self.region,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }

    def client(self, service: str = "kinesis", **options: Any) -> Any:
        """Return a new boto3 client of a service on this server.

        Args:
            service: `kinesis`, `dynamodb`, `cloudwatch` or `sts`.
            options: Passed on to boto3, for instance `config`.
        """
        import boto3
        import botocore.config
        import botocore.session

        if _is_behind_proxy(self.endpoint_url):
            without_proxy = botocore.config.Config(proxies={})
            options["config"] = without_proxy.merge(options.get("config") or botocore.config.Config())
        settings = {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "verify": self.ca_bundle,
            **options,
        }
        session: Any = getattr(_thread_state, "session", None)
        if session is None:
            # Without a profile: the one that AWS_PROFILE names is for elsewhere, and need not exist here.
            without_profile = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
            session = _thread_state.session = boto3.session.Session(botocore_session=without_profile)
        return session.client(service, **settings)

    def create_stream(self, name: str, shards: int = 1, region: str | None = None) -> str:
        """Create a stream that is ACTIVE on return, whatever the quotas; returns its ARN.

        Args:
            name: Its name.
            shards: How many shards it has.
            region: Where it is; the server's own region when None.
        """
        ask = {"name": name, "shards": shards, "region": region or self.region}
        return str(self._remote.ask("POST", "streams", ask)["arn"])

    def calls(self) -> Calls:
        """Return how often each operation was called since the start or the last reset."""
        return Calls(**self._remote.ask("GET", "calls"))

    def reset_calls(self) -> None:
        """Forget all calls."""
        self._remote.ask("DELETE", "calls")

    def state(self) -> dict[str, Any]:
        """Return streams, shards and record counts as the server sees them."""
        return dict(self._remote.ask("GET", "state"))
