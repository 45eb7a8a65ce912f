"""The argument `stream` of a consumer: the streams to read, and the starting position of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from penstock.core.leases.lease import keyed_start
from penstock.core.moments import parse_moment
from penstock.core.position import Position, at_timestamp
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import StreamSummary
from penstock.core.starting import StartingPosition, check_not_in_future, parse_starting
from penstock.core.stream_identity import StreamIdentity, all_regions_of
from penstock.errors import OptionError, PositionError, UsageError

if TYPE_CHECKING:
    from penstock.ports.kinesis import ShardListing
    from penstock.runtime.consumer_registration import ConsumerRegistration

Start: TypeAlias = str | datetime | Position | StartingPosition
StreamArgument: TypeAlias = str | Sequence[str] | Mapping[str, Start]

_KCL_ID: Final = re.compile(r"(?P<account>[0-9]+):(?P<name>[^:]+):(?P<epoch>[0-9]+)")


class NamedStream(Struct, frozen=True):
    """A stream as the user named it.

    Args:
        name: Name or ARN.
        start: Where its shards begin when they are read for the first time.
        start_text: The start as the user wrote it, for messages.
        kcl_id: The id `account:stream:epoch`, if the user has named the stream by it; else None.
    """

    name: str
    start: StartingPosition
    start_text: str
    kcl_id: str | None = None


class ConsumedStream(Struct, frozen=True):
    """A stream that a worker reads.

    Args:
        name: Name or ARN.
        start: Where its shards begin when they are read for the first time; the shards in it are named by lease keys.
        stream_id: The prefix of its lease keys; empty if the lease table is in the form for one stream.
        identity: Distinguishes the stream from others of the same name, whose leases are refused. None: nothing is compared.
        retention_s: How long the stream keeps a record; None if unknown.
        open_shard_count: Open shards when the consumer started; None if unknown.
        registration: The registered consumer for enhanced fan-out, with `fan-out` and `auto`; None with `polling`.
    """

    name: str
    start: StartingPosition
    stream_id: str = ""
    identity: StreamIdentity | None = None
    retention_s: float | None = None
    open_shard_count: int | None = None
    registration: ConsumerRegistration | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Labels of metrics about the whole stream: its name. No labels if the lease table is in the form for one stream."""
        return {"stream": self.name} if self.stream_id else {}


class ConsumedStreams(Struct, frozen=True):
    """The streams of a consumer.

    Args:
        streams: At least one.
        are_several: Whether the lease table has the form for several streams, which also a list of one stream selects.
    """

    streams: tuple[NamedStream, ...]
    are_several: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Name or ARN of each."""
        return tuple(stream.name for stream in self.streams)

    def check_starts(self, now_ms: int, fetch_shards: Callable[[str], ShardListing]) -> None:
        """Check that no stream starts in the future. A start that is later than this machine's clock is compared with the service's.

        Args:
            now_ms: Time by this machine's clock.
            fetch_shards: Lists the shards of a stream; the answer has the service's time.

        Raises:
            PositionError: A stream starts in the future.
        """
        for stream in self.streams:
            try:
                check_not_in_future(stream.start, now_ms, stream.start_text)
            except PositionError:
                service_ms = service_bound_ms(now_ms, fetch_shards(stream.name).server_ms)
                check_not_in_future(stream.start, service_ms, stream.start_text)

    def fetch_descriptions(
        self,
        fetch_summary: Callable[[str], StreamSummary],
        register: Callable[[str], ConsumerRegistration | None],
    ) -> list[ConsumedStream]:
        """Fetch the description of every stream.

        Args:
            register: Returns the registered consumer for a stream's ARN; None if the stream is only polled.

        Raises:
            NotFound, AccessDenied: A stream cannot be used.
            UsageError: Two names mean one stream, or an id does not fit its stream.
        """
        found: dict[str, ConsumedStream] = {}
        for stream in self.streams:
            summary = fetch_summary(stream.name)
            identity = summary.identity
            stream_id = _id_of(stream, identity) if self.are_several else ""
            for twin_id, twin in found.items():
                # An id with another epoch than the stream's still means this stream.
                if stream_id == twin_id or (twin.identity is not None and twin.identity.arn == identity.arn):
                    raise UsageError(
                        f"stream {twin.name} ({twin_id}) and stream {stream.name} ({stream_id}) are the same: name it once"
                    )
            found[stream_id] = ConsumedStream(
                name=stream.name,
                start=keyed_start(stream_id, stream.start),
                stream_id=stream_id,
                identity=identity,
                retention_s=summary.retention_ms / 1000,
                open_shard_count=summary.open_shard_count,
                registration=register(summary.arn),
            )
        return list(found.values())


def _id_of(stream: NamedStream, identity: StreamIdentity) -> str:
    if stream.kcl_id is None:
        return identity.stream_id
    own = identity.stream_id.rpartition(":")[0]
    if stream.kcl_id.rpartition(":")[0] != own:
        raise UsageError(
            f"stream {stream.kcl_id}: the stream {stream.name} is {identity.arn}, so its id begins with {own}"
        )
    return stream.kcl_id


def parse_start(start: Start, option: str) -> StartingPosition:
    """Return a starting position as a value.

    Raises:
        PositionError: The text has none of the accepted forms, or a moment has no time zone or is before the service began.
        OptionError: The value is a position in one shard, which has no meaning in the others, or has another type.
    """
    if isinstance(start, str):
        return parse_starting(start, option)
    if isinstance(start, datetime):
        return StartingPosition(default=at_timestamp(parse_moment(start, option)))
    if isinstance(start, Position):
        start = StartingPosition(default=start)
    if not isinstance(start, StartingPosition):
        raise OptionError(f"{option}={start!r}: {_start_advice(start)}")
    if start.default.is_in_shard:
        raise OptionError(
            f"{option}={start.default} is a place in one shard; give "
            'StartingPosition(by_shard={"shardId-...": ...}) or {"shardId-...": "<sequence number>"} as JSON'
        )
    for position in (start.default, *start.by_shard.values()):
        if position.timestamp_ms is not None:
            parse_moment(position.timestamp_ms, option)
    return start


def _start_advice(start: object) -> str:
    if isinstance(start, Mapping):
        return (
            "positions shard by shard are given as JSON, json.dumps({...}); those of several streams as "
            'stream={"orders": "TRIM_HORIZON", ...}'
        )
    return "expected a text, for instance TRIM_HORIZON, or a datetime with its time zone"


def parse_streams(argument: StreamArgument, starting_position: Start) -> ConsumedStreams:
    """Return the streams that the argument `stream` names.

    Args:
        argument: A name or ARN; several of them; or several with a starting position for each. A stream may also be named
            by the id that Java workers give it, `account:stream:epoch`.
        starting_position: The position of streams for which `argument` has none.

    Raises:
        UsageError: No stream is named, one is named twice, or they are in several regions.
        OptionError: A starting position is invalid, or names shards for several streams at once.
    """
    if not isinstance(argument, Collection):
        raise UsageError(f"stream={argument!r}: expected a name or ARN, or several of them")
    if isinstance(argument, str):
        stream = _parse_stream(argument, starting_position)
        return ConsumedStreams((stream,), are_several=stream.kcl_id is not None)
    if not argument or not all(isinstance(name, str) and name for name in argument):
        raise UsageError(f"stream={argument!r}: expected a name or ARN, or several of them")
    if len(set(argument)) < len(argument):
        raise UsageError(f"stream={argument!r}: each stream is to be named once")
    regions = sorted(all_regions_of(*argument))
    if len(regions) > 1:
        raise UsageError(
            f"stream={argument!r}: the streams of one consumer are in one region, as its lease table is, and these are in "
            f"{' and '.join(regions)}; give each region a consumer of its own"
        )
    if isinstance(argument, Mapping):
        streams = tuple(_parse_stream(name, start, f"stream {name}: ") for name, start in argument.items())
        return ConsumedStreams(streams, are_several=True)
    streams = tuple(_parse_stream(name, starting_position) for name in argument)
    if streams[0].start.by_shard:
        raise OptionError(
            f"starting_position={starting_position!r} names shards, and several streams are read, whose shards have the same "
            'names: give each stream its own position, stream={"orders": ..., "payments": ...}'
        )
    return ConsumedStreams(streams, are_several=True)


def _parse_stream(name: str, start: Start, place: str = "") -> NamedStream:
    match = _KCL_ID.fullmatch(name)
    parsed = parse_start(start, f"{place}starting_position")
    given = f"{place}starting_position={start!r}"
    if match is None:
        return NamedStream(name, parsed, given)
    return NamedStream(match["name"], parsed, given, name)
