"""The steps by which a query joins its application."""

from __future__ import annotations

from penstock.core.batches.offsets import INITIAL_OFFSET
from penstock.spark.driver.joining import Joining

ORDER = [
    "refuse_another_stream",
    "refuse_future_start",
    "create_table",
    "name_worker",
    "refuse_hidden_sharing",
    "scan_table",
    "refuse_foreign_leases",
    "refuse_unknown_shards",
    "warn_of_ignored_start",
    "rewind",
    "register_consumer",
    "warn_of_skipped_shards",
    "recreate_leases",
]


def test_the_steps_have_a_fixed_order():
    joining = Joining(None, None, INITIAL_OFFSET, None, "run")
    assert [step.__name__ for step in joining.steps()] == ORDER


def test_nothing_is_created_before_the_stream_and_the_start_are_checked():
    assert (
        ORDER.index("create_table")
        > ORDER.index("refuse_future_start")
        > ORDER.index("refuse_another_stream")
    )


def test_a_consumer_is_registered_after_every_check_that_can_refuse_the_query():
    refusals = [step for step in ORDER if step.startswith("refuse_")] + ["rewind"]
    assert ORDER.index("register_consumer") > max(map(ORDER.index, refusals))
