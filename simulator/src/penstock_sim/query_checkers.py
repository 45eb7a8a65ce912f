"""Checkers of a Spark query's guarantees: replays, once each, parents before children, no false alarm."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Claim, Release, Reset, Take
from penstock_sim.checker import CLOCK_TOLERANCE, Broken, Checker
from penstock_sim.events import leases, processes, queries, reading, streams
from penstock_sim.events.base import name_of
from penstock_sim.plan import EPOCH_MS
from penstock_sim.query_end_checkers import EndsWhenAllIsRead

STRANGER: Final = "z/stranger"
"""A query of another stream."""
TWINS: Final = ("z/twin0", "z/twin1")
"""The two sources of one query that loads the stream twice."""
NAMESAKE: Final = "z/namesake"
"""A query that names no application."""
_REFUSED: Final = frozenset({STRANGER, NAMESAKE, *TWINS})
_BATCHES_OF_TWINS_MAX: Final = 4
_EMPTY_IN_A_ROW_MAX: Final = 10
_SERVICE_CLOCK_MS: Final = 2000  # a driver gets the service's clock from answers, in whole seconds

_Place = tuple[str, str, int, str]


class SameReplays(Checker):
    """Q1: every execution of a batch holds the same records, however late, and whichever worker had the lease in between.

    Three exceptions: a row that was deleted or damaged, whose claims are gone with it; a checkpoint location that was set
    back, after which the executions of earlier drivers no longer count, since leases that others own by then are not read
    again, and tasks that outlive such a driver have no driver that accepts their results; and records that have left the stream. Batches of a copied location are separate batches.
    """

    invariant = "Q1"

    def _begin(self) -> None:
        self._held: dict[_Place, tuple[int, ...]] = {}
        self._parts: dict[_Place, tuple[int, ...]] = {}
        self._copies: set[str] = set()
        self._life: dict[str, int] = {}
        self._first_life: dict[str, int] = {}
        self._restored: dict[str, int] = {}  # the last batch of a location that was set back

    def _on_process_started(self, event: processes.ProcessStarted) -> None:
        """Forget the batches behind a location that was set back if no lease shows them to the driver any more."""
        name, _, life = event.who.partition("#")
        self._life[name] = int(life or 0)
        claims = [row.claim_of(name) for row in self.history.rows.values()]
        if name in self._restored and all(
            claim is None or claim.batch <= self._restored[name] for claim in claims
        ):
            self._forget(name, self._restored.pop(name))

    def _on_location_restored(self, event: queries.LocationRestored) -> None:
        """Ignore later reads by tasks of the drivers so far: they have ended, so Spark accepts none of their results."""
        self._first_life[event.query] = self._life.get(event.query, 0) + 1
        self._restored[event.query] = event.batch

    def _on_message_logged(self, event: processes.MessageLogged) -> None:
        if "has no record of claims" in event.text:
            name = name_of(event.who)
            self._first_life[name] = int(event.who.partition("#")[2])
            self._restored.pop(name, None)
            self._forget(name, -1)

    def _forget(self, name: str, last: int) -> None:
        """Forget the records of a query's batches after the last one that counts."""
        for known in (self._held, self._parts):
            for place in [place for place in known if place[0] == name and place[2] > last]:
                del known[place]

    def _on_location_copied(self, event: queries.LocationCopied) -> None:
        self._copies.add(event.copy)

    def _place(self, who: str, batch: int, key: str) -> _Place:
        return (name_of(who), who if who in self._copies else "", batch, key)

    def _is_out(self, who: str, key: str) -> bool:
        life = int(who.partition("#")[2])
        return life < self._first_life.get(name_of(who), 0) or self.history.is_exempt(key)

    def _on_batch_read(self, event: queries.BatchRead) -> None:
        who, key, rows = event.who, event.key, event.numbers
        if self._is_out(who, key):
            return
        place = self._place(who, event.batch, key)
        first = self._held.setdefault(place, rows)
        if not self._are_same(key, rows, first):
            raise Broken(f"batch {event.batch} of {who} held {first} of {key}, and now {rows}")
        self._compare_part(place, self._parts.get(place, ()))

    def _on_batch_read_in_part(self, event: queries.BatchReadInPart) -> None:
        if not self._is_out(event.who, event.key):
            place = self._place(event.who, event.batch, event.key)
            self._parts[place] = max(event.numbers, self._parts.get(place, ()), key=len)
            self._compare_part(place, event.numbers)

    def _compare_part(self, place: _Place, part: tuple[int, ...]) -> None:
        whole = self._held.get(place)
        # If another worker took the lease before any end was fixed, the batch is empty here, and the records that the action read
        # belong to that worker. An action that stops early fixes no end: if another attempt fixes one first, records after that end
        # are read again.
        if not whole or whole[: len(part)] == part[: len(whole)]:
            return
        left = self._left(place[3], part)
        if self._left(place[3], whole)[: len(left)] != left:
            raise Broken(f"batch {place[2]} of {place[0]} held {whole} of {place[3]}; an action took {part}")

    def _are_same(self, key: str, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Return whether two executions differ only by records that left the stream between them."""
        return one == other or self._left(key, one) == self._left(key, other)

    def _left(self, key: str, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows whose records have not left the stream."""
        shard = self.history.shards[key]
        last = shard.sequences[shard.trimmed - 1] if shard.trimmed else -1
        return tuple(row for row in rows if row > last)


class OnceEach(Checker):
    """Q2: a record is emitted once, and one more time for each change of its shard's owner between its arrival and the read.

    A new owner begins at the checkpoint. A query that gets a shard back begins after the claim of its last batch, if that is
    further on. A worker that begins again under its name counts as another one. A query emits the batches that
    it commits. If a batch is done while its shard has no lease, the query has warned that its records are read again.
    """

    invariant = "Q2"

    def _begin(self) -> None:
        self._emitted: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._begins: dict[str, list[int]] = {}
        self._begins_s: dict[str, list[float]] = {}
        self._reader: dict[str, str] = {}
        self._started: dict[str, str] = {}
        self._lives: dict[tuple[str, str], str] = {}
        """By shard, the latest life of each name."""
        self._committed: set[tuple[str, int]] = set()
        self._without_lease: set[str] = set()

    def _on_location_restored(self, event: queries.LocationRestored) -> None:
        """Forget the claims of batches that the location has no record of: their records are read again."""
        self._committed = {place for place in self._committed if place[0] != event.query}

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write, after = event.write, event.after
        if after is None:
            self._without_lease.add(write.key)
            return
        self._without_lease.discard(write.key)
        reader = after.reader
        is_new = reader is not None and reader != self._reader.get(write.key, reader)
        if is_new or isinstance(write, Reset):
            place = self.history.index_after(write.key, after.checkpoint)
            claim = None if reader is None else after.claim_of(reader)
            is_done = claim is not None and (reader, claim.batch) in self._committed
            if claim is not None and is_done and reader not in self.history.copied:
                place = max(place, self.history.index_after(write.key, claim.end))
            self._add_begin(write.key, place)
        if reader is not None:
            self._reader[write.key] = reader

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        who, key = event.who, event.key
        name = name_of(who)
        is_back = self._started.get(key) == name
        if self._reader.get(key) != name:  # taken by another, which a restarted one has not read yet
            is_back = self._lives.get((key, name), who) != who
        if is_back:
            self._add_begin(key, self.history.index_after(key, event.position))
        self._started[key] = name
        self._lives[key, name] = who

    def _add_begin(self, key: str, place: int) -> None:
        self._begins.setdefault(key, []).append(place)
        self._begins_s.setdefault(key, []).append(self.history.now)

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        self._committed.add((event.query, event.batch))
        for key, rows in event.results:
            if rows and key in self._without_lease:
                self._add_begin(key, self.history.shards[key].sequences.index(rows[0]))
            self._emit(event.query, event.batch, key, rows)

    def _on_records_handled(self, event: reading.RecordsHandled) -> None:
        if event.epoch >= 0:
            self._emit(name_of(event.who), -1, event.key, event.numbers)

    def _emit(self, name: str, batch: int, key: str, rows: tuple[int, ...]) -> None:
        for row in rows:
            emitted = self._emitted.setdefault((key, row), [])
            if batch >= 0 and (name, batch) in emitted:
                continue
            emitted.append((name, batch))
            if len(emitted) == 1 or self.history.is_exempt(key):
                continue
            place = self.history.shards[key].sequences.index(row)
            # A worker that has lost a lease goes on until it finds out, at most for a lease duration.
            came_s = (self.history.shards[key].arrivals_ms[place] - EPOCH_MS) / 1000
            earliest = bisect_left(
                self._begins_s.get(key, ()), came_s - (1 + CLOCK_TOLERANCE) * self.options.lease_duration_s
            )
            begins = self._begins.get(key, [])[earliest:]
            allowed = 1 + sum(1 for begin in begins if begin <= place)
            if len(emitted) > allowed:
                raise Broken(
                    f"record {row} of {key} was emitted by {emitted}, and {allowed - 1} changes of hands explain it"
                )


class ParentsInEarlierBatches(Checker):
    """Q3: a child's first record is in a later batch than its parents' last one, and after all of them are handled."""

    invariant = "Q3"

    def _begin(self) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self._first: dict[tuple[str, str], int] = {}
        self._set_back: set[str] = set()

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write = event.write
        if isinstance(write, Reset) and write.claim_worker is not None:
            self._forget(write.claim_worker)
            self._set_back.add(write.key)  # its next owner reads it again, perhaps after its children

    def _on_location_restored(self, event: queries.LocationRestored) -> None:
        """Forget a query's batches: later ones may have their numbers, if no lease has their claims any more."""
        self._forget(event.query)

    def _forget(self, name: str) -> None:
        for known in (self._last, self._first):
            for place in [place for place in known if place[0] == name]:
                del known[place]

    def _on_batch_planned(self, event: queries.BatchPlanned) -> None:
        for key in event.keys:
            for parent in self.history.shards[key].parents:
                undone = self.history.first_undone(parent, len(self.history.shards[parent].sequences))
                if undone is not None and not self.history.is_exempt(parent):
                    raise Broken(
                        f"batch {event.batch} of {event.who} reads {key} before {undone} of {parent}"
                    )

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        name, batch = event.query, event.batch
        held = [key for key, rows in event.results if rows and not self.history.is_exempt(key)]
        if name in self.history.copied:
            self._forget(name)
        for key in held:
            self._last[name, key] = max(batch, self._last.get((name, key), batch))
            self._first.setdefault((name, key), batch)
        for key in held:
            for parent in set(self.history.shards[key].parents) - self._set_back:
                if self._last.get((name, parent), -1) >= self._first[name, key]:
                    raise Broken(f"batch {batch} of {name} holds records of {key} and of its parent {parent}")
            for child in () if key in self._set_back else self.history.shards[key].children:
                is_early = self._first.get((name, child), batch + 1) <= batch
                if is_early and not self.history.is_exempt(child):
                    raise Broken(f"batch {batch} of {name} holds records of {key} after its child {child}")


class NothingSkipped(Checker):
    """Q4: everything before a batch's start is handled.

    Two copies of a checkpoint location have no record of each other's unfinished batches: one of the queries is stopped.
    """

    invariant = "Q4"

    def _on_batch_planned(self, event: queries.BatchPlanned) -> None:
        for key, start in () if name_of(event.who) in self.history.copied else event.starts:
            undone = self.history.first_undone(key, self.history.index_after(key, start))
            if undone is not None:
                raise Broken(
                    f"batch {event.batch} of {event.who} starts {key} at {start}, and {undone} before it is not handled"
                )


class ReadersClaim(Checker):
    """Q6: a claim that holds records is the reader's, and no checkpoint has passed its start."""

    invariant = "Q6"

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write, before = event.write, event.before
        if not isinstance(write, Claim) or before is None or write.claim.end == write.claim.start:
            return
        claim, key = write.claim, write.key
        if before.reader != claim.worker:
            raise Broken(f"{event.who} claimed {key} for {claim.worker}, and {before.reader} reads it")
        start, passed = (self.history.index_after(key, each) for each in (claim.start, before.checkpoint))
        if before.checkpoint.is_record and start < passed:
            raise Broken(
                f"{event.who} claimed {key} from {claim.start} on, and {before.checkpoint} is done elsewhere"
            )


class NoFalseAlarm(Checker):
    """Q5: lost records, another driver or another stream are reported only if there are any; nothing crashes.

    If a claim was dropped because its records had left the stream, an attempt of its batch that still runs claims as another
    driver would.
    """

    invariant = "Q5"

    def _begin(self) -> None:
        self._excused: set[str] = set()

    def _is_false_loss(self, error: str) -> bool:
        # If records leave the stream, `QueryLossesReported` judges the reports.
        return error == "StreamChanged" or (error == "DataLossError" and self.history.retention_ms is None)

    def _on_read_task_failed(self, event: queries.ReadTaskFailed) -> None:
        """Judge a task's error; errors of an attempt whose batch is already done do not count, except for a loss."""
        if self._is_false_loss(event.error):
            raise Broken(
                f"a task of {event.who} speaks of a loss, and nothing has left the stream: {event.text}"
            )

    def _on_query_failed(self, event: queries.QueryFailed) -> None:
        who, error, text = event.who, event.error, event.text
        if self._is_false_loss(error):
            raise Broken(f"{who} speaks of a loss, and nothing has left the stream: {text}")
        is_damaged = self.history.was_table_dropped or bool(self.history.exempted)
        name = name_of(who)
        is_excused = name in self._excused or self.history.is_query_exempt(name) or is_damaged
        if "AnotherDriver" in f"{error} {text}" and not is_excused:
            raise Broken(f"{who} speaks of another driver, and there never was one: {text}")
        if error == "OptionError" and name_of(who) not in _REFUSED:
            raise Broken(f"{who} refuses its own options: {text}")

    def _on_message_logged(self, event: processes.MessageLogged) -> None:
        if event.error and event.level in ("ERROR", "CRITICAL"):
            raise Broken(f"{event.who}: {event.text}: {event.error}")

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        """Check that a query of another stream changes nothing; remember the workers whose claims are dropped."""
        write = event.write
        if name_of(event.who) == STRANGER:
            raise Broken(f"{event.who}, which reads another stream, wrote {write}")
        if isinstance(write, Claim):
            self._excused.update(worker for worker, _ in write.dropped_claims)


class OneReader(Checker):
    """Q7: no two sources get parts of one stream unless their users have said so.

    A query that loads the stream twice under one name is refused after its first batches. A query that names no application is
    refused while another worker is alive under the name that it gets. Loads detect each other by their tasks' claims: if no
    claim of a load is left, because a row was deleted or others have read the shard since, that takes as many batches again.
    """

    invariant = "Q7"

    def _begin(self) -> None:
        self._batches: dict[str, int] = {}
        self._claimed: dict[str, set[str]] = {twin: set() for twin in TWINS}
        """For each load, the keys of the rows that have a claim by one of its tasks."""
        self._known: dict[str, int] = {}
        """The batches of each load at the last moment when `_claimed` was empty for one of the loads."""
        self._alive_s: dict[str, tuple[float, float]] = {}
        """For each worker: the first and last moment of the period in which it renewed leases without a gap of a lease duration."""
        self._up_s = 0.0

    def _on_process_started(self, event: processes.ProcessStarted) -> None:
        if name_of(event.who) == NAMESAKE:
            self._up_s = self.history.now
        if name_of(event.who) in TWINS:
            self._batches.clear()
            self._known.clear()

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        self._alive_s.pop(name_of(event.who), None)

    def _on_lease_deleted(self, event: leases.LeaseDeleted) -> None:
        self._track_claims(event.key, None)

    def _track_claims(self, key: str, row: Lease | None) -> None:
        for twin, keys in self._claimed.items():
            claim = None if row is None else row.claim_of(twin)
            # Without a note, a driver has fixed the batch's end: such a claim is no sign of a load.
            if claim is not None and claim.note:
                keys.add(key)
            else:
                keys.discard(key)
        if not all(self._claimed.values()):
            self._known = dict(self._batches)

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        """Count the batches that both loads of a query have emitted.

        The limit grows with their number, since a load checks for the other's claims less and less often.
        """
        name = event.query
        if name in TWINS and any(rows for _, rows in event.results):
            self._batches[name] = self._batches.get(name, 0) + 1
            known = {twin: self._known.get(twin, 0) for twin in TWINS}
            since = {twin: self._batches.get(twin, 0) - known[twin] for twin in TWINS}
            is_late = any(since[twin] > known[twin] + _BATCHES_OF_TWINS_MAX for twin in TWINS)
            if is_late and min(since.values()) > _BATCHES_OF_TWINS_MAX:
                raise Broken(f"both loads of one query emit records of one application: {self._batches}")

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write, after = event.who, event.write, event.after
        self._track_claims(write.key, after)
        now, lease_s = self.history.now, self.options.lease_duration_s
        if name_of(who) == NAMESAKE:
            for name, (since_s, until_s) in self._alive_s.items() if isinstance(write, Take) else ():
                if since_s < self._up_s and now - until_s < lease_s / 2:
                    raise Broken(f"{who} named no application and took {write.key}, and {name} lives")
        elif event.before is not None and after is not None and event.before.counter != after.counter:
            name = name_of(who)
            if isinstance(write, Release):
                self._alive_s.pop(name, None)
                return
            since_s, until_s = self._alive_s.get(name, (now, now))
            has_paused = now - until_s > lease_s * (1 - CLOCK_TOLERANCE)
            self._alive_s[name] = (now if has_paused else since_s, now)


class PassesWhatIsDone(Checker):
    """Q8: a driver goes on after the batches that it emitted and Spark has committed, also if no action read their rows.

    Records that arrive after a batch was planned are for the next one, and those after the start of an availableNow query for the next
    query. A lease that changed owner in between goes on at the position of its row.
    An unread batch counts only if the driver was the query's only one, no wall clock has jumped, no answer reported the tip too
    early, no answer was empty at the end of the batch's time, and the stream still has its records.
    """

    invariant = "Q8"

    def _begin(self) -> None:
        self._planned: dict[tuple[str, int, str], tuple[str, int, int]] = {}
        """For each shard of a batch: the driver that planned it, the index where it began, and the index after the records
        that existed then by the driver's clock."""
        self._passed: dict[tuple[str, str], int] = {}
        """The first record of a shard that a driver's next batch may begin at."""
        self._read: dict[str, queries.Results] = {}
        self._has_jumped = False
        self._until_ms: dict[tuple[str, int], int] = {}
        """For a batch of a query that reads the existing records and ends: records from this moment on are not in the batch."""
        self._left: dict[tuple[str, str], int] = {}
        """The same moment for a batch that no action has read: the driver reads its existing records itself."""
        self._ended_early: set[str] = set()
        """Shards of which a read may have ended too early since their last batch was planned: an answer reported the tip too
        early, or was empty when the batch's time was over."""

    def _on_tip_reported_early(self, event: streams.TipReportedEarly | streams.EmptyPageReturned) -> None:
        self._ended_early.add(event.key)

    def _on_batch_bounded(self, event: queries.BatchBounded) -> None:
        self._until_ms[event.who, event.batch] = event.until_ms

    def _on_batch_planned(self, event: queries.BatchPlanned) -> None:
        who, batch = event.who, event.batch
        for key, start in event.starts:
            index = self.history.index_after(key, start)
            left = self._left.pop((who, key), 0)
            if key not in self._ended_early and left > self.history.shards[key].trimmed:
                self._pass(who, key, left)
            if index < self._passed.get((who, key), 0) and not self.history.is_exempt(key):
                raise Broken(
                    f"batch {batch} of {who} begins {key} at {start}, where a batch began that it has gone on from"
                )
            known_ms = self.history.now_ms - _SERVICE_CLOCK_MS
            if key in event.keys:
                self._ended_early.discard(key)
                until_ms = min(known_ms + 1, self._until_ms.get((who, batch), known_ms + 1))
                count = bisect_left(self.history.shards[key].arrivals_ms, until_ms)
                self._planned[name_of(who), batch, key] = (who, index, count)

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        """Remember the shards that were read to their end; the next lines of history name the reader."""
        self._read[event.query] = event.results

    def _on_records_handled(self, event: reading.RecordsHandled) -> None:
        key = event.key
        if event.epoch < 0 and (key, event.numbers) in self._read.get(name_of(event.who), ()):
            self._pass(event.who, key, bisect_right(self.history.shards[key].sequences, event.numbers[-1]))

    def _on_batch_unread(self, event: queries.BatchUnread) -> None:
        for key in () if self._has_jumped or self.history.is_query_exempt(event.query) else event.keys:
            who, begin, count = self._planned.get((event.query, event.batch, key), ("", 0, 0))
            if begin < count:
                self._left[who, key] = begin + 1

    def _pass(self, who: str, key: str, index: int) -> None:
        self._passed[who, key] = max(index, self._passed.get((who, key), 0))

    def _on_wall_clock_jumped(self, event: processes.WallClockJumped) -> None:
        """Stop checking unread batches: the drivers' clocks are not reliable any more."""
        self._has_jumped = True

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        reader = None if event.before is None else event.before.reader
        if isinstance(event.write, Reset) or event.after is None or event.after.reader != reader:
            for passed in (self._passed, self._left):
                for place in [place for place in passed if place[1] == event.write.key]:
                    del passed[place]


class ReadsWhatItPlans(Checker):
    """Q9: a query does not plan batches without end of a shard without unread records.

    A few in a row are not a fault: an answer was empty, records have left the stream since the shard was probed, or no action read a
    batch.
    """

    invariant = "Q9"

    def _begin(self) -> None:
        self._empty: Counter[tuple[str, str]] = Counter()

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        name = event.query
        for key, rows in event.results:
            self._empty[name, key] += 1
            if rows:
                del self._empty[name, key]
            elif self._empty[name, key] > _EMPTY_IN_A_ROW_MAX:
                raise Broken(
                    f"batch {event.batch} of {name} is the {self._empty[name, key]}th in a row without records of {key}"
                )


QUERIES: Final = (
    SameReplays,
    OnceEach,
    ParentsInEarlierBatches,
    NothingSkipped,
    NoFalseAlarm,
    ReadersClaim,
    OneReader,
    PassesWhatIsDone,
    ReadsWhatItPlans,
    EndsWhenAllIsRead,
)
