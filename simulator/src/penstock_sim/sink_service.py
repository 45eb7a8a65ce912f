"""The service of a simulated sink's tasks: streams that refuse, fall silent, are deleted, and a folder of files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from msgspec import Struct, field

from penstock.core.limits import PUT_RECORDS_BYTES_MAX, PUT_RECORDS_COUNT_MAX
from penstock.core.put_entry import EntryAnswer, PutEntry
from penstock.core.shard import StreamSummary
from penstock.errors import AccessDenied, NotFound, PenstockError, Rejected, ServiceError
from penstock.ports.kinesis import ShardFilter, ShardListing
from penstock_sim.blocking_ports import SimClock, SimKinesis
from penstock_sim.environment import Environment
from penstock_sim.events import producers, sinks
from penstock_sim.plan import STREAM_NAME, SinkPlan
from penstock_sim.process import SimProcess
from penstock_sim.producer import SimPuts
from penstock_sim.sink_rows import text_of
from penstock_sim.stream import SimStream

LETTERS: Final = "letters"
"""The stream, and the folder, of dead letters."""
_SLOW_MAX_S: Final = 20.0


class SinkStream(Struct):
    """A stream that sinks write to."""

    name: str
    stream: SimStream  # its shards and records
    deleted_until: float = 0.0  # until then it does not exist
    silent_until: dict[str, float] = field(default_factory=dict)  # until when each shard refuses every record


class SinkService(Struct):
    """The service that the sinks of a world share."""

    plan: SinkPlan
    streams: dict[str, SinkStream]
    files: dict[str, bytes] = field(default_factory=dict)  # the files of all folders


class AttemptPlace(Struct, frozen=True):
    """Which attempt of which task writes."""

    name: str
    query: str
    batch: int  # Spark's number of the batch
    part: int

    def text_of(self, row_number: int) -> str:
        """Return the name of a row of the task."""
        return f"{self.query}:{self.batch}.{self.part}.{row_number}"


class SinkPuts(SimPuts):
    """The service's side of one attempt's calls to one stream."""

    def __init__(self, world: Environment, plan: SinkPlan, target: SinkStream, attempt: AttemptPlace) -> None:
        super().__init__(world, target.stream, attempt.name)
        self._sink_plan = plan
        self._target = target
        self._place = attempt

    def serve(self, entries: Sequence[PutEntry]) -> Any:
        answer = refusal(self._world, self._target) or self._check_limits(entries) or super().serve(entries)
        refused = isinstance(answer, list) and any(each.error_code for each in answer)
        if refused or isinstance(answer, PenstockError):
            self._world.record(sinks.RowsRefused(self.attempt, self._target.name))
        return answer

    def _check_limits(self, entries: Sequence[PutEntry]) -> PenstockError | None:
        sizes = [len(entry.data) + len(entry.partition_key.encode()) for entry in entries]
        if (
            0 < len(entries) <= PUT_RECORDS_COUNT_MAX
            and sum(sizes) <= PUT_RECORDS_BYTES_MAX
            and max(sizes) <= self._sink_plan.record_bytes_max
            and all(1 <= len(entry.partition_key) <= 256 for entry in entries)
        ):
            return None
        self._world.record(sinks.RequestTooLarge(self.attempt, len(entries), max(sizes, default=0)))
        return Rejected("one or more parameters are invalid", code="ValidationException")

    def take_one(self, entry: PutEntry) -> EntryAnswer:
        """Take or refuse one entry; a silent shard refuses each."""
        world, target = self._world, self._target
        if any(world.now < until for until in target.silent_until.values()):
            shard = self.shard_of(entry)
            if world.now < target.silent_until.get(shard.shard_id, 0.0):
                world.met["fault: outages_per_min"] += 1
                return EntryAnswer(error_code="InternalFailure", error_message="out of order")
        return super().take_one(entry)

    # --- the history --------------------------------------------------------------------------------------

    def text_of(self, data: bytes) -> str:
        """Return the name of a row, given its data or its dead letter."""
        return self._place.text_of(json.loads(data)["row"]) if data[:1] == b"{" else text_of(data)

    def record_stored(self, shard_id: str, numbers: list[int], texts: tuple[str, ...], is_read: bool) -> None:
        """Record rows, of the stream that consumers read as records too; or dead letters."""
        name = self._target.name
        if name == STREAM_NAME:
            super().record_stored(shard_id, numbers, texts, is_read)
        elif name == LETTERS:
            self._world.record(sinks.DeadLettersStored(self.attempt, name, texts))
        else:
            stored = producers.RecordsStored(f"{name}/{shard_id}", numbers[0], texts, is_read, self.attempt)
            self._world.record(stored)


def refusal(world: Environment, target: SinkStream) -> PenstockError | None:
    """Return the error of any call to a stream at this moment, or None."""
    if world.is_denied("stream"):
        return AccessDenied(f"{world.denial}: stream {target.name}", code=world.denial, resource=target.name)
    if world.now < target.deleted_until:
        world.met["fault: deletions_per_min (call)"] += 1
        return NotFound(
            f"stream {target.name} does not exist", code="ResourceNotFoundException", resource=target.name
        )
    return None


class SinkKinesis(SimKinesis):
    """The service as one attempt sees it."""

    def __init__(self, process: SimProcess, service: SinkService, attempt: AttemptPlace) -> None:
        super().__init__(process, "sink ", process.world.stream)
        self._streams = streams = service.streams
        self._plan = plan = service.plan
        self._puts = {
            name: SinkPuts(process.world, plan, target, attempt) for name, target in streams.items()
        }
        self._attempt = attempt

    def __eq__(self, other: object) -> bool:
        """Compare the process, as the adapter compares its options: one attempt's knowledge serves the next."""
        return isinstance(other, SinkKinesis) and self.process is other.process

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self.process)

    def fetch_summary(self, stream: str) -> StreamSummary:
        target, world = self._streams[stream], self._world

        def serve() -> Any:
            error = refusal(world, target) or world.stream_error()
            if isinstance(error, AccessDenied) and self._plan.large_row:
                # If the policy forbids the call, a large row cannot be distinguished from one that is too large.
                error = AccessDenied("ExpiredTokenException", code="ExpiredTokenException")
            if isinstance(error, ServiceError):
                return type(error)(f"stream {stream}: {error}", code=error.code, resource=stream)
            return error

        self._caller.call("describe", serve)
        return StreamSummary(
            stream,
            f"arn:{stream}",
            "ACTIVE",
            1,
            open_shard_count=len(target.stream.open_shards()),
            record_bytes_max=self._plan.record_bytes_max,
        )

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        target, world = self._streams[stream], self._world

        def serve() -> Any:
            if world.scenario.faults.listing_denied:
                world.met["fault: listing_denied"] += 1
                return AccessDenied("ListShards is not permitted", code="AccessDeniedException")
            return refusal(world, target) or world.serve_listing(shard_filter, target.stream)

        return ShardListing(*self._caller.call("list shards", serve))

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        puts = self._puts[stream]
        answers: Sequence[EntryAnswer] = self._caller.call(
            "put", lambda: puts.serve(entries), self._attempt.name, retried=False
        )
        if self._world.luck("slow_put"):
            SimClock(self.process).sleep(self._world.chance.uniform(1.0, _SLOW_MAX_S))
        return answers


@dataclass
class SinkFolder:
    """Implements `penstock.spark.sink.folder.FileFolder`: files that outlive their writers."""

    process: SimProcess
    location: str
    files: dict[str, bytes]  # the files of all folders

    def read(self, name: str) -> bytes:
        self._take_time("read")
        content = self.files.get(f"{self.location}/{name}")
        if content is None:
            raise FileNotFoundError(name)
        return content

    def replace(self, name: str, content: IO[bytes]) -> None:
        content.seek(0)
        data = content.read()
        self._take_time("written")
        self.files[f"{self.location}/{name}"] = data
        self.process.world.record(sinks.FileWritten(self.process.who, self.location, name, data.decode()))

    def _take_time(self, what: str) -> None:
        world = self.process.world
        SimClock(self.process).sleep(world.latency_s())
        if world.has_fault("folder_failure"):
            raise OSError(f"{self.location} cannot be {what} just now")
