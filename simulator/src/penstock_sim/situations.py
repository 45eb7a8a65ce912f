"""How often each fault, each decision and each awkward situation happened: the worth of a clean run.

A simulator that finds nothing may have met nothing. The environment and the ports count faults, refusals and decisions as
they happen; situations that take several events are found here, in the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from penstock.core.batches.claims import NothingReason, RefusedClaim, StartReason
from penstock.core.leases.kcl3_fleet import FleetMode
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Refusal, Release, Take
from penstock.core.position import Position
from penstock_sim.faults import FaultPlan, Scenario
from penstock_sim.history import HistoryEntry, name_of
from penstock_sim.kcl3_plan import UPGRADING, WITH_LEADER, Kcl3Plan
from penstock_sim.producer_plan import ProducerPlan
from penstock_sim.query_plan import QueryPlan
from penstock_sim.seed_kinds import SeedKind
from penstock_sim.sink_situations import expected_of_sinks
from penstock_sim.streams_situations import EXPECTED as EXPECTED_OF_STREAMS

_NOT_COUNTED: Final = frozenset({"pause_max_s", "clock_rate_spread", "wall_jumps", "latency_max_s"})
_FAULTS_OF_QUERIES: Final = frozenset({"unknown_shard", "lost_iterator", "early_tip"})
_FAULTS_OF_CONSUMERS: Final = frozenset(
    {
        "handler_failure",
        "poison_record",
        "denials_per_min",
        "rows_of_others",
        "second_processes_per_min",
    }
)
_OF_A_PLAN: Final = frozenset({"options", "executor_count", "executor_pause_max_s", "available_now"})
_BY_HISTORY: Final = {
    "stopping": "stops_per_min",
    "closed": "reshards_per_min",
    "row_deleted": "row_deletions_per_min",
    "table_dropped": "table_drops_per_min",
    "quiet": "quiet_streams_per_min",
    "executor_down": "executor_kills_per_min",
    "restored": "restores_per_min",
    "copied": "copies_per_min",
    "moved": "moves_per_min",
}
_OF_ALL: Final = (Refusal.EXISTS, Refusal.MISSING, Refusal.COUNTER, Refusal.HANDOVER, Refusal.BACKWARDS)
_OF_QUERIES: Final = (*_OF_ALL, Refusal.OWNER, Refusal.CHECKPOINT, Refusal.CLAIMED, Refusal.CLAIM_GONE)
# A driver has to end while its task is paused, and the next one has to reset the lease before the task claims.
_RARELY_MEANT: Final = frozenset({RefusedClaim.ROW_RECREATED})
# A lease that is gone is made again before its batch is settled.
_SETTLED: Final = (StartReason.CLAIMED, StartReason.CHECKPOINT, StartReason.NOT_READ)
_ROBBED: Final = "situation: a lease is taken from a query during its batch"
_OUTLASTED: Final = "situation: a task outlasts a lease"
_REPLACED: Final = "situation: a driver comes back while others have its leases"
_RACING: Final = "situation: a task runs twice at the same time"
_TWO_DRIVERS: Final = "situation: two drivers work from one checkpoint location"
_REPEATED: Final = "situation: a batch is run again by another driver"
_RESHARDED: Final = "situation: a shard is closed during its batch"
_FOREIGN: Final = "situation: a worker that knows only the KCL's attributes takes a lease"
_TRIMMED: Final = "situation: records leave the stream"
_EXPIRED: Final = "situation: a shard leaves the stream"
_LOSS: Final = "situation: a loss is told"
_DEAD: Final = "situation: a record goes to the dead letters"
_STOPPED: Final = "situation: a shard stops for good"
_INSIDE: Final = "situation: a reader begins inside an aggregate"
_BATCH_INSIDE: Final = "situation: a batch begins inside an aggregate"
_BATCH_GONE: Final = "situation: a batch begins at a record that has left the stream"
_BATCH_LOSS: Final = "situation: a batch goes on behind a loss"
_REQUESTER_GONE: Final = "situation: a worker stops for ever during a hand-over that it has requested"
_SITUATIONS_OF_CONSUMERS: Final = (_TRIMMED, _EXPIRED, _LOSS, _DEAD, _STOPPED, _INSIDE, _REQUESTER_GONE)
_LEADS: Final = "situation: a worker becomes the leader"
_LEADS_NO_MORE: Final = "situation: a leader loses its lock"
_LEADER_GONE: Final = "situation: the leader goes without a word"
_ASSIGNED: Final = "situation: the leader assigns a free lease"
_ASKED: Final = "situation: the leader asks for a lease"
_FORCED: Final = "situation: the leader assigns what was not handed over"
_TO_PENSTOCK: Final = "situation: a KCL 3 worker hands a lease to a Penstock worker"
_TO_KCL: Final = "situation: a Penstock worker hands a lease to a KCL 3 worker"
_UPGRADED: Final = "situation: a fleet goes on from the KCL's 2.x mode to a leader"
_ROLLED_BACK: Final = "situation: a fleet with a leader goes back to the KCL's 2.x mode"
_TAKEN_AS_2X: Final = "situation: a KCL 3 worker in 2.x mode takes a lease from a Penstock worker"
_LED_BATCH: Final = "situation: a query of a fleet with a leader runs a batch"
_LEADERLESS_TAKE: Final = "situation: a Penstock worker takes a free lease while nobody leads"
_SITUATIONS_OF_KCL3: Final = (
    _LEADS,
    _LEADS_NO_MORE,
    _LEADER_GONE,
    _ASSIGNED,
    _ASKED,
    _FORCED,
    _TO_PENSTOCK,
    _TO_KCL,
    _LEADERLESS_TAKE,
    _UPGRADED,
    _ROLLED_BACK,
    _TAKEN_AS_2X,
    _LED_BATCH,
)
_BY_LEADER: Final = {"leader assigns": _ASSIGNED, "leader asks": _ASKED, "leader forces": _FORCED}
_NOT_OF_KCL3: Final = frozenset({"fault: table_drops_per_min", "fault: rows_of_others"})
_TWICE: Final = "situation: a record is stored twice"
_ASTRAY: Final = "situation: another shard takes an aggregate, and its readers see it"
_DROPPED: Final = "situation: another shard takes an aggregate, and its readers drop it"
_ABANDONED: Final = "situation: a record comes whose producer has crashed"
_KEY_MOVED: Final = "situation: the handler of another shard goes on with a key"
_COPY_HANDED: Final = "situation: a handler gets a record again, from another place of the stream"
_SITUATIONS_OF_PRODUCERS: Final = (_TWICE, _ASTRAY, _DROPPED, _ABANDONED, _KEY_MOVED, _COPY_HANDED)
_OF_PUTS: Final = ("put_", "entry_")
_FAULTS_OF_PRODUCERS: Final = (
    "crashes_per_min",
    "stops_per_min",
    "pauses_per_min",
    "reshards_per_min",
    "stream_throttle",
    "bad_listing",
    "denials_per_min",
)
_SENT_AGAIN: Final = (
    "throttled",
    "unavailable",
    "unknown",
    "ProvisionedThroughputExceededException",
    "InternalFailure",
    "NoAnswer",
    "misplaced",
)
_COUNTED_LINES: Final = {
    "leads": _LEADS,
    "leads_no_more": _LEADS_NO_MORE,
    "trimmed": _TRIMMED,
    "expired": _EXPIRED,
    "loss": _LOSS,
    "dead": _DEAD,
    "failed": _STOPPED,
}
_SITUATIONS: Final = (
    _ROBBED,
    _OUTLASTED,
    _REPLACED,
    _RACING,
    _TWO_DRIVERS,
    _REPEATED,
    _RESHARDED,
    _FOREIGN,
    _TRIMMED,
    _EXPIRED,
    _BATCH_INSIDE,
    _BATCH_GONE,
    _BATCH_LOSS,
)


def expected(kind: SeedKind) -> tuple[str, ...]:
    """Return the situations that a run of many seeds of a kind must meet."""
    if kind is SeedKind.SINKS:
        return expected_of_sinks()
    if kind is SeedKind.STREAMS:
        return (*expected(SeedKind.CONSUMERS), *EXPECTED_OF_STREAMS)
    others = _FAULTS_OF_CONSUMERS if kind is SeedKind.QUERIES else _FAULTS_OF_QUERIES
    faults = [each for each in FaultPlan.__struct_fields__ if each not in others]
    known = [f"fault: {name}" for name in faults if name not in _NOT_COUNTED]
    if kind is SeedKind.PRODUCERS:
        of_puts = [f"fault: {each}" for each in ProducerPlan.__struct_fields__ if each.startswith(_OF_PUTS)]
        again = [f"sent again: {reason}" for reason in _SENT_AGAIN]
        return (
            *(f"fault: {each}" for each in _FAULTS_OF_PRODUCERS),
            *of_puts,
            *again,
            *_SITUATIONS_OF_PRODUCERS,
        )
    if kind is SeedKind.KCL3:
        known = [fault for fault in known if fault not in _NOT_OF_KCL3]
        of_fleet = [f"fault: {each}" for each in Kcl3Plan.__struct_fields__ if each.endswith("_per_min")]
        modes = [f"fleet: {mode.name}" for mode in FleetMode]
        return (*known, *of_fleet, *modes, *_SITUATIONS_OF_KCL3)
    if kind is SeedKind.CONSUMERS:
        return (*known, *(f"refusal: {reason.name}" for reason in _OF_ALL), *_SITUATIONS_OF_CONSUMERS)
    plan = [each for each in QueryPlan.__struct_fields__ if each not in _OF_A_PLAN]
    return (
        *known,
        *(f"fault: {name}" for name in plan),
        *(f"refusal: {reason.name}" for reason in _OF_QUERIES),
        *(f"settled: {reason.name}" for reason in _SETTLED),
        "settled: END FIXED BY THE DRIVER",
        "task: ReadFreely",
        "task: ReadTo",
        "task: ReadUnclaimed",
        "task: ClaimedElsewhere",
        *(f"task: ReadNothing {reason.name}" for reason in NothingReason),
        *(f"refused claim: {meaning.name}" for meaning in RefusedClaim if meaning not in _RARELY_MEANT),
        *_SITUATIONS,
    )


def never_met(met: Iterable[str], kind: SeedKind) -> list[str]:
    """Return the expected situations that did not happen."""
    found = list(met)
    return [each for each in expected(kind) if not any(key.startswith(each) for key in found)]


class Situations:
    """Finds situations in one seed's history.

    Args:
        scenario: Drawn from the seed.
        met: Counted in.
    """

    def __init__(self, scenario: Scenario, met: Counter[str]) -> None:
        self._scenario = scenario
        self._met = met
        self._lease_s = scenario.options.lease_duration_s
        self._running: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._ran: dict[tuple[str, int], str] = {}
        self._attempts: dict[tuple[str, str, int, str], float] = {}
        self._rows: dict[str, Lease] = {}
        self._alive: set[str] = set()
        self._gone: dict[str, int] = {}
        self._kcl3 = frozenset[str]() if scenario.kcl3 is None else scenario.kcl3.workers
        self._leaders: set[str] = set()
        self._seen: set[str] = set()
        self._crashed: set[str] = set()
        self._modes: dict[str, str] = {}
        self._version = "" if scenario.kcl3 is None else scenario.kcl3.begins
        self._numbers: tuple[int, ...] = ()
        self._shard_of: dict[str, str] = {}
        self._number_of: dict[str, int] = {}

    def see(self, entry: HistoryEntry) -> None:
        """Handle one line."""
        kind = entry[1]
        if kind in _BY_HISTORY:
            self._met[f"fault: {_BY_HISTORY[kind]}"] += 1
        elif kind in _COUNTED_LINES:
            self._met[_COUNTED_LINES[kind]] += 1
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(entry[0], *entry[2:])

    def _on_start(self, _now: float, _who: str, _key: str, _epoch: int, position: Position) -> None:
        if position.sub_sequence_number:
            self._met[_INSIDE] += 1

    def _on_down(self, _now: float, who: str, how: str) -> None:
        self._alive.discard(who)
        self._running.pop(who, None)
        if how == "crashed":
            self._met["fault: crashes_per_min"] += 1
            self._met[_LEADER_GONE] += who in self._leaders
            self._crashed.add(who)
        self._leaders.discard(who)
        name = name_of(who)
        requested = [
            row for row in self._rows.values() if row.owner == name and row.checkpoint_owner is not None
        ]
        if requested and name in self._scenario.leavers:
            self._met[_REQUESTER_GONE] += 1

    def _on_up(self, _now: float, who: str) -> None:
        name = name_of(who)
        if name not in self._scenario.queries:
            return
        if any(name_of(other) == name for other in self._alive):
            self._met[_TWO_DRIVERS] += 1
        self._alive.add(who)
        rows = self._rows.values()
        if any(row.claim_of(name) is not None and row.reader not in (None, name) for row in rows):
            self._met[_REPLACED] += 1

    def _on_pause(self, _now: float, who: str, _until_s: float) -> None:
        kind = "executor_pauses_per_min" if who.startswith("executor") else "pauses_per_min"
        self._met[f"fault: {kind}"] += 1

    def _on_batch(self, _now: float, who: str, batch: int, keys: tuple[str, ...]) -> None:
        self._running[who] = (batch, keys)
        self._met[_LED_BATCH] += bool(keys and self._leaders)
        if self._ran.setdefault((name_of(who), batch), who) != who:
            self._met[_REPEATED] += 1

    def _on_leads(self, _now: float, who: str) -> None:
        self._leaders.add(who)

    def _on_leads_no_more(self, _now: float, who: str, _why: str) -> None:
        self._leaders.discard(who)

    def _on_led(self, _now: float, _who: str, what: str, _key: str, _reader: str | None, _to: str) -> None:
        self._met[_BY_LEADER[what]] += 1

    def _on_version(self, _now: float, version: str) -> None:
        self._met[_UPGRADED] += self._version == UPGRADING and version in WITH_LEADER
        self._met[_ROLLED_BACK] += self._version in WITH_LEADER and version not in WITH_LEADER
        self._version = version

    def _on_report(self, _now: float, who: str, topic: str, reason: str, _key: str | None) -> None:
        if topic == "FLEET" and name_of(who) not in self._kcl3:
            self._modes[who] = reason
            self._met[f"fleet: {reason.upper()}"] += 1

    def _see_change(self, who: str, write: Any, before: Lease, after: Lease) -> None:
        """Count the moves of leases in a fleet of KCL 3 workers."""
        if isinstance(write, Release) and after.owner is not None:
            pair = (name_of(who) in self._kcl3, after.owner in self._kcl3)
            self._met[_TO_PENSTOCK] += pair == (True, False)
            self._met[_TO_KCL] += pair == (False, True)
        if isinstance(write, Take) and before.reader is None and write.worker == name_of(who):
            self._met[_LEADERLESS_TAKE] += self._modes.get(who) == "leaderless"
        if isinstance(write, Take) and write.worker == name_of(who) and before.reader is not None:
            is_taken = name_of(who) in self._kcl3 and before.reader not in self._kcl3
            self._met[_TAKEN_AS_2X] += is_taken and self._version not in WITH_LEADER

    def _on_stored(self, _now: float, _key: str, _number: int, texts: tuple[str, ...], is_read: bool) -> None:
        if is_read:
            self._met[_TWICE] += len(self._seen.intersection(texts))
            self._seen.update(texts)
        self._met[_ABANDONED] += texts[0].partition(":")[0] in self._crashed

    def _on_deliver(self, _now: float, _who: str, _key: str, _epoch: int, numbers: tuple[int, ...]) -> None:
        self._numbers = numbers

    _on_redeliver = _on_deliver

    def _on_handed(self, _now: float, _who: str, shard: str, _epoch: int, records: Any) -> None:
        for (text, key), number in zip(records, self._numbers, strict=False):
            self._met[_KEY_MOVED] += self._shard_of.get(key, shard) != shard
            self._shard_of[key] = shard
            self._met[_COPY_HANDED] += self._number_of.setdefault(text, number) != number

    def _on_misrouted(self, _now: float, _texts: tuple[str, ...], is_read: bool) -> None:
        self._met[_ASTRAY if is_read else _DROPPED] += 1

    def _on_trimmed(self, _now: float, key: str, _count: int, last: int) -> None:
        self._gone[key] = last

    def _on_logged(self, _now: float, _who: str, _batch: int, starts: Any, read: tuple[str, ...]) -> None:
        for key, start in starts:
            if start.sequence_number is None or key not in read:
                continue
            if start.sub_sequence_number:
                self._met[_BATCH_INSIDE] += 1
            if int(start.sequence_number) <= self._gone.get(key, -1):
                self._met[_BATCH_GONE] += 1

    def _on_log(self, _now: float, _who: str, _level: str, text: str, _error: str) -> None:
        if "on (failOnDataLoss=false)" in text:
            self._met[_BATCH_LOSS] += 1

    def _on_committed(self, _now: float, name: str, batch: int, _results: Any) -> None:
        for who, (running, _) in list(self._running.items()):
            if name_of(who) == name and running == batch:
                del self._running[who]

    def _on_closed(self, _now: float, key: str) -> None:
        if any(key in keys for _, keys in self._running.values()):
            self._met[_RESHARDED] += 1

    def _on_write(self, _now: float, who: str, write: Any, before: Lease | None, after: Lease | None) -> None:
        if after is None:
            self._rows.pop(write.key, None)
            return
        self._rows[write.key] = after
        if before is not None and self._kcl3:
            self._see_change(who, write, before, after)
        if not isinstance(write, Take) or before is None or before.reader == write.worker:
            return
        if name_of(who) in self._scenario.foreign:
            self._met[_FOREIGN] += 1
        for driver, (_, keys) in self._running.items():
            if name_of(driver) == before.reader and write.key in keys:
                self._met[_ROBBED] += 1

    def _on_attempt(self, now: float, who: str, executor: str, batch: int, key: str) -> None:
        if any((each[0], *each[2:]) == (who, batch, key) for each in self._attempts):
            self._met[_RACING] += 1
        self._attempts[who, executor, batch, key] = now

    def _on_attempt_ended(self, now: float, who: str, executor: str, batch: int, key: str) -> None:
        began_s = self._attempts.pop((who, executor, batch, key), now)
        if now - began_s > self._lease_s:
            self._met[_OUTLASTED] += 1

    def _on_executor_down(self, _now: float, who: str) -> None:
        self._attempts = {each: since for each, since in self._attempts.items() if each[1] != who}
