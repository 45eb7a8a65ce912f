"""Planted bugs of a Spark query's claims, its planner, its tasks and its probes."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.batches import claims, query_shards, shard_state
from penstock.core.batches.claims import (
    BatchStart,
    ClaimedElsewhere,
    ClaimRefusal,
    ReadFreely,
    ReadTo,
    StartReason,
    judge_refused_claim,
    plan_read,
)
from penstock.core.batches.query_shards import QueryShards
from penstock.core.leases import row_checks
from penstock.core.leases.lease import PastClaim
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Claim, Promote, Take, is_forward
from penstock.core.reading import shard_reader
from penstock.core.reading.reader_steps import Failed, Finished
from penstock.core.reading.resume import MissingRecord
from penstock.core.reading.shard_reader import ShardReader
from penstock.spark.driver import batch_settling, batch_tasks, joining, lease_recreation, startup_checks
from penstock.spark.driver.news_polling import NewsPoller
from penstock.spark.driver.query_worker import QueryWorker
from penstock.spark.tasks import arrow_records, claimed_read, page_limits
from penstock.spark.tasks.claimed_read import ClaimedRead
from penstock.spark.tasks.shard_read import BatchPart
from penstock_sim.table import SimTable
from sim.mutants import Mutants

QUERY_MUTANTS = Mutants()
planted = QUERY_MUTANTS.planted
CLAIMS = "the claim protocol"
SPARK = "connectors that keep offsets in Spark alone"

STATE_AFTER = shard_state.state_at_start
GIVE_BACK = QueryShards._release
SETTLE = QueryShards.settle
KEEP_REST = ClaimedRead._keep_rest
POSITION_OF = page_limits.position_of
COUNT_DONE = page_limits.count_up_to
ON_ITERATOR = ShardReader.on_iterator
DRAINED = QueryShards.release_finished
ON_FAILURE = NewsPoller._on_failure

# --- the table's rules --------------------------------------------------------------------------------------


@planted("the last claim stands", CLAIMS, 9, SimTable, "decide")
def last_claim_stands(self, before, write):
    if isinstance(write, Claim) and before is not None:
        own = before.claim_of(write.claim.worker)
        write = replace(write, claim_seen=None if own is None else own.identity)
    return apply_write(before, write)


@planted("a take clears the claims", CLAIMS, 10, SimTable, "decide")
def take_clears_claims(self, before, write):
    outcome = apply_write(before, write)
    if isinstance(write, Take) and isinstance(outcome, Applied):
        return Applied(replace(outcome.lease, claims=()))
    return outcome


@planted("a promotion is not fenced by its batch", CLAIMS, 222, SimTable, "decide")
def promotes_any_batch(self, before, write):
    if isinstance(write, Promote) and before is not None and before.reader == write.worker:
        claim = before.claim_of(write.worker)
        if claim is not None and claim.end.is_record and is_forward(before.checkpoint, claim.end):
            return apply_write(before, replace(write, batch=claim.batch, position=claim.end))
    return apply_write(before, write)


@planted("a claim without being the reader", CLAIMS, 50, SimTable, "decide")
def claims_without_the_lease(self, before, write):
    if isinstance(write, Claim) and before is not None:
        as_reader = replace(before, owner=write.claim.worker, checkpoint_owner=None)
        outcome = apply_write(as_reader, write)
        if isinstance(outcome, Applied):
            owners = {"owner": before.owner, "checkpoint_owner": before.checkpoint_owner}
            return Applied(replace(outcome.lease, **owners))
    return apply_write(before, write)


@planted("a claim does not look at the checkpoint", CLAIMS, 18, SimTable, "decide")
def claims_whatever_the_checkpoint(self, before, write):
    if isinstance(write, Claim) and before is not None:
        write = replace(write, checkpoint_seen=before.checkpoint)
    return apply_write(before, write)


# --- tasks --------------------------------------------------------------------------------------------------


@planted("a replay reads on to the tip", SPARK, 2, claimed_read, "plan_read")
def reads_again(lease, execution):
    plan = plan_read(lease, execution)
    return ReadFreely() if lease is not None and lease.reader == execution.worker else plan


@planted("a refused claim is taken for one's own", CLAIMS, 50, claimed_read, "judge_refused_claim")
def agrees_with_everything(row, execution, mine):
    meaning, end = judge_refused_claim(row, execution, mine)
    return (ClaimRefusal.AGREES if meaning in (ClaimRefusal.READ_ON, ClaimRefusal.REPEAT) else meaning, end)


@planted("rows of a lost lease count", CLAIMS, 50, claimed_read, "judge_refused_claim")
def takes_a_lost_lease_for_agreement(row, execution, mine):
    """Records that were read before the lease was lost are emitted without an end."""
    meaning, end = judge_refused_claim(row, execution, mine)
    return (ClaimRefusal.AGREES if meaning is ClaimRefusal.LOST else meaning, end)


@planted("the iterator behind a cut page is kept", "any cache of iterators", 0, ClaimedRead, "_keep_rest")
def keeps_the_iterator_behind_the_page(self, page, count):
    """The kept iterator skips the records that were cut off the page."""
    KEEP_REST(self, page, count)
    self._shard.keep_iterator(self._progress.end)


def leaves_out_only_behind_a_new_iterator(self, page):
    """A page that repeats records is new to the reader, unless it has just taken an iterator."""
    return self._skip_through


@planted(
    "the iterator at the last record is kept",
    "this query",
    606,
    ShardReader,
    "iterator",
    also=((ShardReader, "_read_through", leaves_out_only_behind_a_new_iterator),),
    needs=lambda scenario: scenario.faults.empty_page,
)
@property
def keeps_any_iterator(self):
    """An iterator that still begins at the last record is taken for one behind it."""
    return self._iterator


@planted("one answer at the tip is believed", "KCL: lag 0", 162, ShardReader, "read_again")
def never_asks_twice(self, now_s):
    return False


@planted(
    "what was read is read again",
    "several: AT for AFTER",
    0,
    ShardReader,
    "on_iterator",
    also=((ShardReader, "_read_through", leaves_out_only_behind_a_new_iterator),),
)
def reads_on_without_leaving_out(self, iterator, now_s, wall_ms):
    """A reader whose new iterator begins at the last record, which it emits again."""
    ON_ITERATOR(self, iterator, now_s, wall_ms)
    self._skip_through = None


@planted("every end is believed", "several: a null iterator", 9, ShardReader, "_on_last_page")
def believes_every_end(self, page, is_progress, now_s, chance):
    """A reader that takes a missing next iterator for the end of the shard."""
    self.final = Finished(page.child_shards)


# --- the driver ---------------------------------------------------------------------------------------------


@planted(
    "the next batch starts at the checkpoint", "a driver beside the KCL", 0, query_shards, "resolve_start"
)
def starts_at_the_checkpoint(lease, worker, known, planned):
    return None if lease is None else BatchStart(lease.checkpoint, StartReason.CHECKPOINT)


@planted("the promotion of a quiet shard is dropped", "this query", 8, QueryShards, "settle")
def forgets_promotions(self, *args, **more):
    self._promotions = {}
    return SETTLE(self, *args, **more)


@planted("tasks do not know the claim that stands", SPARK, 0, QueryShards, "last_claim")
def knows_no_claim(self, key):
    return


@planted("what came later is skipped with an unread batch", SPARK, 14, batch_settling, "_with_earlier_end")
def skips_what_came_later(task, moment_ms):
    """An unread batch is fixed to end at the tip: records that arrived after its plan are skipped too."""
    return task


@planted(
    "a restored location is not noticed",
    SPARK,
    76,
    joining,
    "find_unknown_claims",
    also=((query_shards, "find_unknown_claims"),),
)
def finds_no_unknown_claims(rows, worker, known):
    return []


@planted(
    "a claim of another history counts as one's own",
    "this query: copies of a checkpoint location",
    10150,
    PastClaim,
    "is_of",
    needs=lambda scenario: scenario.faults.copies_per_min,
)
def goes_by_the_number(self, batch, planned_by):
    return self.batch == batch


@planted(
    "what was claimed before a restore is another driver's",
    SPARK,
    2759,
    QueryShards,
    "_is_new",
    needs=lambda scenario: scenario.faults.restores_per_min,
)
def finds_every_claim_new(_self, _claim, _seen):
    return True


@planted("a shard ends without its children", "KCL 339", 3, QueryShards, "release_finished")
def ends_before_the_children(self, *listed_children):
    return [replace(event, children=()) for event in DRAINED(self, *listed_children)]


@planted("a probe that failed is the last one", "silent stalls: KCL 185", 2, NewsPoller, "_on_failure")
def gives_up_after_a_failure(self, answer, error):
    ON_FAILURE(self, answer, error)
    self._failing.clear()
    answer.state.due_s = float("inf")


# --- aggregates, and records that have left the stream ------------------------------------------------------


@planted(
    "a batch ends at the first record of an aggregate",
    "several: sub-sequence numbers are not stored",
    6,
    claimed_read,
    "position_of",
)
def forgets_the_place_inside(rows, index):
    return replace(POSITION_OF(rows, index), sub_sequence_number=0)


@planted("an aggregate that was begun is given again", SPARK, 3, arrow_records, "count_up_to")
def gives_the_rest_once_more(batch, after):
    return COUNT_DONE(batch, replace(after, sub_sequence_number=-1) if after.is_record else after)


@planted("a whole aggregate counts as its first record", "this query", 8, ClaimedRead, "_position_after")
def takes_whole_for_the_first(self, rows):
    """A record that is emitted whole counts as its first user record alone."""
    return self._progress.end if rows.num_rows == 0 else POSITION_OF(rows, rows.num_rows - 1)


@planted(
    "a gone record is never a loss",
    "several: trimmed records are passed over",
    76,
    shard_reader,
    "judge_missing_record",
)
def is_never_a_loss(*_args, **_kwargs):
    return MissingRecord.HARMLESS


@planted(
    "a gone record is always a loss", "readers on quiet streams", 6, shard_reader, "judge_missing_record"
)
def is_always_a_loss(*_args, **_kwargs):
    return MissingRecord.LOSS


@planted("a task does not know the tip", "this query: quiet streams", 6, batch_tasks, "BatchPart")
def knows_no_tip(**task):
    return BatchPart(**{**task, "tip_ms": None})


@planted("a vanished shard ends the query", "this query: vanished shards", 32, ShardReader, "_on_unknown")
def ends_at_an_unknown_shard(self, error):
    self.final = Failed(error)


# --- what fresh eyes found ----------------------------------------------------------------------------------


@planted("what was given back is forgotten", "this query", 171, QueryShards, "_release")
def forgets_what_it_gives_back(self, key):
    """A shard that returns before the next batch begins at its row's position, though it was read further."""
    event = GIVE_BACK(self, key)
    self._released.pop(key, None)
    return event


@planted(
    "an older moment on the lease counts",
    "this query: empty batches without end",
    544,
    shard_state,
    "state_at_start",
    also=((query_shards, "state_at_start"),),
    needs=lambda scenario: scenario.retention_s is not None,
)
def believes_the_lease(begin, row, now_ms):
    """A driver that knows from a lease when nothing was left, although its task has found so since."""
    state = STATE_AFTER(begin, row, now_ms)
    tip_ms = None if row is None else row.tip_ms_at(state.position)
    return state if tip_ms is None else replace(state, tip_seen_ms=tip_ms)


@planted("a second driver finds its batch empty", "this query: second drivers", 51, claimed_read, "plan_read")
def finds_its_batch_empty(lease, execution):
    plan = plan_read(lease, execution)
    return ReadTo(execution.start) if isinstance(plan, ClaimedElsewhere) else plan


@planted(
    "rows that were left unread are offered again",
    "this query: actions that read nothing",
    30,
    QueryShards,
    "find_unclaimed_shards",
)
def leaves_no_end_to_fix(self, start, rows):
    return []


@planted(
    "that there is nothing is not claimed",
    "this query",
    3937,
    ClaimedRead,
    "_claim_nothing",
    needs=lambda scenario: scenario.faults.robberies_per_min,
)
def claims_nothing(self, lease, why):
    return True


@planted(
    "who comes back looks at no checkpoint", "this query: foreign owners", 2, claims, "is_checkpoint_past"
)
def passes_nothing(lease, position):
    return False


@planted(
    "leases of another stream are taken",
    "this query: two streams under one name",
    19,
    startup_checks,
    "find_foreign_lease",
    also=((row_checks, "find_foreign_lease"),),
)
def finds_no_foreign_lease(*_args):
    return


@planted(
    "two loads of one query share the shards",
    "this query: two loads under one name",
    124,
    batch_settling,
    "refuse_sharing_in_one_query",
    needs=lambda scenario: scenario.faults.twins_per_min,
)
@planted(
    "default names are shared in silence",
    "this query: default names that collide",
    4,
    joining,
    "refuse_shared_default_name",
)
def refuses_nothing(*_args, **_kwargs):
    return


@planted(
    "a run ends where nobody reads on",
    "this query: a run with AvailableNow that ended green over a hole",
    426,
    QueryWorker,
    "describe_unread_part",
    needs=lambda scenario: scenario.faults.available_now,
)
def knows_of_nothing_unread(_self):
    return


@planted(
    "the table of the earlier name is forgotten",
    "this query: a renamed application that repeated its last batch",
    96,
    lease_recreation.LeaseRecreation,
    "_read_earlier_table",
    needs=lambda scenario: scenario.faults.moves_per_min,
)
def finds_an_empty_table(_self, _known):
    return {}, "is empty"


planted("one listing without a shard ends it", "KCL 339", 178, shard_reader, "_UNLISTED_MIN")(1)
