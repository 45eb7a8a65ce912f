"""Plans the batches of a streaming query of several streams: one planner for each, in the process beside the driver.

Each stream is planned, settled and read as by a query of this stream alone, on its own rows of one lease table. This planner
searches the streams in turn, splits the limits of a batch among those with records to read, and joins their offsets.
An error of one stream ends the query; the others keep their positions.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.offsets import NO_LIMITS, Limits, StreamOffset
from penstock.core.batches.several_offsets import MultiStreamOffset, serving_order, split_limits, split_total
from penstock.core.leases.kcl3_fleet import FleetMode, FleetModeDetector
from penstock.core.leases.lease import stream_name_of
from penstock.core.leases.row_checks import describe_foreign_table, find_lease_of_other_mode
from penstock.core.reading.service_clock import service_now_ms
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import NotFound, OptionError, PenstockError, StreamChanged
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.metrics_tally import LabelledMetrics
from penstock.spark.driver.joining import name_worker
from penstock.spark.driver.planner import Planner
from penstock.spark.driver.planner_opening import open_metrics, open_planner
from penstock.spark.driver.search import Search, must_await_shard
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.stream_names import naming_stream
from penstock.spark.streams.several_report import add_reports, without_batch_figures
from penstock.spark.tasks.shard_read import BatchPart
from penstock.wiring import SystemClock, open_kcl3_tables, open_kinesis, open_lease_table

_log: Final = logging.getLogger("penstock.spark")
_ROUND_WAIT_MAX_S: Final = 0.25
"""Longest wait between two rounds: one stream's planner waits, and the lease commands of the others do not end its wait."""


class PlannedStream(Struct, frozen=True):
    """One stream of a query.

    Args:
        place: Its place in the options' list.
        name: Name or ARN, as in the options.
    """

    place: int
    name: str
    planner: Planner


class SeveralPlanner:
    """The driver's side of one streaming query of several streams. Called by one thread."""

    def __init__(self, options: SeveralOptions) -> None:
        self._options = options
        shared = self._shared = options.shared
        self._kinesis = open_kinesis(shared.connection)
        self._table = open_lease_table(shared.lease_table, shared.connection)
        self._kcl3 = open_kcl3_tables(shared.lease_table, shared.connection)
        self._clock = SystemClock()
        self._streams: dict[str, PlannedStream] = {}
        self._is_joined = False
        self._is_available_now = False
        self._metrics: ClosableMetrics | None = None
        self._streams_read: frozenset[str] | None = None  # by the batch that ran last; None: not known
        self._streams_settled: frozenset[str] | None = None  # read by the batch that was settled last
        self._recreated_ids: frozenset[str] = frozenset()  # of deleted streams whose names were used again

    # --- calls from Spark ---------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads before it ends."""
        self._is_available_now = True
        for stream in self._streams.values():
            stream.planner.prepare_available_now()

    def join(self, offset: MultiStreamOffset) -> None:
        """Open every stream's planner; later calls have no effect.

        All streams are described before the first lease is taken. Their planners then take leases at the same time.

        Args:
            offset: The last offset that Spark has logged.
        """
        if self._is_joined:
            return
        try:
            self._open_streams(offset)
        except PenstockError:
            self._stop_streams()
            raise
        self._is_joined = True

    def latest(
        self, start: MultiStreamOffset, *, with_limits: bool = True, may_be_only_batch: bool = False
    ) -> MultiStreamOffset:
        """Return the next batch's offset, or `start` itself if no stream has anything to read.

        Args:
            start: The offset of the previous batch, which is done.
            with_limits: Whether the options' limits apply to this batch.
            may_be_only_batch: Whether this may be the run's only batch: all shards are then searched, and not only until a record is found.

        Raises:
            PenstockError: A stream cannot be planned; the message names it.
        """
        searches: dict[str, Search] = {}
        for stream_id, stream in self._streams.items():
            with naming_stream(stream.name):
                searches[stream_id] = stream.planner.begin_search(
                    start.offset_of(stream_id), may_be_only_batch=may_be_only_batch
                )
        self._search(searches, may_be_only_batch=may_be_only_batch)
        self._streams_settled = self._streams_read
        planned = self._plan(start, searches, with_limits=with_limits)
        return start.without_streams(self._recreated_ids).with_plans(planned) if planned else start

    def tasks(
        self, start: MultiStreamOffset, end: MultiStreamOffset
    ) -> list[tuple[int, Sequence[BatchPart]]]:
        """Return the tasks of a batch, each with the place of its stream in the options' list and the parts that it reads.

        Only the offsets decide which records are read, so a replay reads the same ones.

        Raises:
            OptionError: The batch reads a stream that is not in the list any more, and failOnDataLoss is on.
            StreamChanged: The batch reads a stream that was deleted and created again.
        """
        read = end.streams_read_since(start)
        self._check_streams_read(read, end)
        read = tuple(stream_id for stream_id in read if stream_id in self._streams)
        self._streams_read = frozenset(read)
        shares = {stream_id: max(1, len(end.offset_of(stream_id).shares())) for stream_id in read}
        partitions_max = split_total(self._shared.partitions_max, shares)
        batch: list[tuple[int, Sequence[BatchPart]]] = []
        for stream_id in read:
            stream = self._streams[stream_id]
            with naming_stream(stream.name):
                tasks = stream.planner.tasks(
                    end.offset_of(stream_id), partitions_max=partitions_max[stream_id]
                )
            batch += [(stream.place, parts) for parts in tasks]
        return batch

    def report(self) -> dict[str, Any] | None:
        """Return the last batch's figures, the lag and the leases: their totals, and those of each stream."""
        reports = []
        for stream_id, stream in self._streams.items():
            report = stream.planner.report()
            if report is not None:
                was_read = self._streams_settled is None or stream_id in self._streams_settled
                reports.append(report if was_read else without_batch_figures(report))
        return add_reports(reports, self._shared.stream) if reports else None

    def stop(self) -> None:
        """End threads, and release the leases of every stream that has no batch under way."""
        failures = self._stop_streams()
        if failures:
            raise failures[0]

    def _stop_streams(self) -> list[Exception]:
        """Stop every stream, also after one could not be stopped; return and log the errors."""
        failures = []
        for stream in self._streams.values():
            try:
                with naming_stream(stream.name):
                    stream.planner.stop()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other streams are stopped first
                _log.error("a stream of the query could not be stopped: %s", error)
                failures.append(error)
        self._streams, self._is_joined = {}, False
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        return failures

    # --- searching and planning -----------------------------------------------------------------------------

    def _search(self, searches: Mapping[str, Search], *, may_be_only_batch: bool) -> None:
        """Search the streams in turn until one has records to read; with `may_be_only_batch`, until all searches have ended."""
        running_searches = dict(searches)
        while True:
            for stream_id in list(running_searches):
                stream = self._streams[stream_id]
                with naming_stream(stream.name):
                    if stream.planner.search_once(searches[stream_id]):
                        del running_searches[stream_id]
            has_found = any(search.wanted_shards for search in searches.values())
            if not running_searches and must_await_shard(searches.values(), self._clock.monotonic_s()):
                running_searches = dict(searches)
            if not running_searches or (has_found and not may_be_only_batch):
                return
            wake_s = min(search.wake_s for search in running_searches.values()) - self._clock.monotonic_s()
            self._streams[next(iter(running_searches))].planner.wait(min(_ROUND_WAIT_MAX_S, wake_s))

    def _plan(
        self, start: MultiStreamOffset, searches: Mapping[str, Search], *, with_limits: bool
    ) -> dict[str, StreamOffset]:
        """Plan the next batch; return the offset of each stream that it reads."""
        order = serving_order(list(self._streams), start.batch_count)
        shard_counts = {
            stream_id: len(searches[stream_id].wanted_shards)
            for stream_id in order
            if searches[stream_id].wanted_shards
        }
        limits = Limits(self._shared.record_count_max, self._shared.bytes_max) if with_limits else NO_LIMITS
        planned = {}
        for stream_id, part in split_limits(limits, shard_counts).items():
            stream = self._streams[stream_id]
            with naming_stream(stream.name):
                planned[stream_id] = stream.planner.plan(searches[stream_id], part)
        return planned

    def _check_streams_read(self, read: Sequence[str], end: MultiStreamOffset) -> None:
        """Check that a batch, which may be a repeated one, reads only streams that the query has now."""
        for stream_id in read:
            if stream_id in self._streams:
                continue
            name = stream_name_of(stream_id)
            if stream_id in self._recreated_ids:
                raise StreamChanged(
                    f"stream {name} was deleted and created again, and batch {end.offset_of(stream_id).batch} of it, which is not done, reads "
                    "the earlier one: it cannot be repeated. Start with a new checkpoint location and a new applicationName"
                )
            text = (
                f"stream {name} is not in streamName={self._shared.stream} any more, and batch {end.offset_of(stream_id).batch} of it is not "
                "done"
            )
            if self._shared.fail_on_data_loss:
                raise OptionError(
                    f"{text}. Start the query once with {name}, until the batch is done, and then without it; if the stream is gone, set "
                    "failOnDataLoss=false"
                )
            _log.warning("%s; going on without its records (failOnDataLoss=false)", text)

    # --- joining --------------------------------------------------------------------------------------------

    def _open_streams(self, offset: MultiStreamOffset) -> None:
        identities = self._fetch_identities()
        self._check_table(offset.worker)
        offset = self._without_recreated_streams(offset, identities)
        # One worker id for all streams: the query is one worker of its application.
        worker = name_worker(self._shared, offset.worker, random.SystemRandom())
        if self._metrics is None:
            self._metrics = open_metrics(self._shared, worker)
        for place, (options, identity) in enumerate(zip(self._options.streams, identities, strict=True)):
            with naming_stream(options.stream):
                metrics = _StreamMetrics(self._metrics, {"stream": options.stream.rpartition("/")[2]})
                worker_options = replace(options, worker_id=worker)
                planner = open_planner(worker_options, part_of=identity, metrics=metrics)
                if self._is_available_now:
                    planner.prepare_available_now()
                self._streams[identity.stream_id] = PlannedStream(place, options.stream, planner)
                planner.join(offset.offset_of(identity.stream_id))
        left_out = sorted(offset.by_stream.keys() - self._streams.keys())
        if left_out:
            _log.warning(
                "the query does not read %s any more; its positions stay in the checkpoint location",
                ", ".join(left_out),
            )

    def _fetch_identities(self) -> list[StreamIdentity]:
        identities: list[StreamIdentity] = []
        for options in self._options.streams:
            with naming_stream(options.stream):
                identity = self._kinesis.fetch_summary(options.stream).identity
            if identity in identities:
                raise OptionError(
                    f"option streamName names stream {options.stream} twice; name each stream once"
                )
            identities.append(identity)
        return identities

    def _check_table(self, worker: str) -> None:
        """Refuse a table of one stream, and one of a native KCL 3 fleet."""
        try:
            rows = self._table.scan().leases
        except NotFound:
            return
        foreign = find_lease_of_other_mode(rows, reads_several=True)
        if foreign is not None:
            text = describe_foreign_table(
                self._table.name, self._shared.stream, foreign, "applicationName (or leaseTable)"
            )
            raise OptionError(
                f"{text}. A query that read one stream before goes on where it was, under another applicationName and with its checkpoint "
                "location: it copies its leases"
            )
        if self._kcl3 is None:
            return
        fleet = self._kcl3.fetch(None)
        now_ms = service_now_ms(self._clock.wall_ms(), fleet.server_ms)
        mode = FleetModeDetector(worker).detect(fleet, self._clock.monotonic_s(), now_ms / 1000)
        if mode in (FleetMode.LED, FleetMode.LEADERLESS):
            raise OptionError(
                f"lease table {self._table.name} is one of a native KCL 3 fleet, whose leader assigns the leases: a query of several "
                "streams does not follow it. Read with an applicationName of its own, with one query for each stream, or with "
                "penstock.Consumer"
            )

    def _without_recreated_streams(
        self, offset: MultiStreamOffset, identities: Sequence[StreamIdentity]
    ) -> MultiStreamOffset:
        """Drop the offsets of streams that were deleted and created again; refuse them if failOnDataLoss is on."""
        recreated_ids = []
        for options, identity in zip(self._options.streams, identities, strict=True):
            before = offset.earlier_id_of(identity)
            if before is None:
                continue
            text = (
                f"stream {options.stream} was deleted and created again (it was {before}, and is {identity.stream_id}): the records of the "
                "earlier one that were not read are gone"
            )
            if options.fail_on_data_loss:
                raise StreamChanged(
                    f"{text}. To read the new one from startingPosition, beside the other streams, set option failOnDataLoss=false; to "
                    "go on without it, leave it out of streamName"
                )
            _log.warning("%s; the new one is read from startingPosition (failOnDataLoss=false)", text)
            recreated_ids.append(before)
        self._recreated_ids = frozenset(recreated_ids)
        return offset.without_streams(recreated_ids)


class _StreamMetrics(LabelledMetrics):
    """Metrics of one stream, with the stream as a label. The query closes the backend that its streams share."""

    def close(self) -> None:
        """Do nothing."""
