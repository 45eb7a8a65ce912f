"""The marks of the tests, by folder, file or test. A test sets none itself, except those that `SET_BY_TESTS` has.

`spark` starts a JVM, `slow` is left to `make test-slow`. `interop` builds programs against libraries of others and runs
them, with a JVM too, or fetches their packages: only by `make test-interop` and `make test-lakehouse`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
MARKS: dict[str, tuple[str, ...]] = {
    "cli/commands/test_encodings.py": ("slow",),
    "cli/commands/test_init_pipeline.py": ("spark", "slow"),
    "cli/commands/test_moments.py": ("slow",),
    "cli/commands/test_queues.py::test_consume_prints_and_acknowledges_a_queue": ("slow",),
    "cli/commands/test_queues.py::test_dead_letters_are_exported_restored_by_filter_and_purged": ("slow",),
    "cli/commands/test_signals.py": ("slow",),
    "cli/commands/test_sql_processes.py": ("slow",),
    "cli/commands/test_workers.py": ("slow",),
    "cli/overview/test_browser.py": ("slow",),
    "cli/test_completion.py::test_a_shell_completes_with_what_is_printed": ("slow",),
    "cli/test_put.py": ("slow",),
    "cli/test_put.py::test_each_line_is_a_record": (),
    "conformance/test_our_source.py": ("slow",),
    "conformance/test_page.py": ("slow",),
    "consumer/test_fan_out_faults.py": ("slow",),
    "consumer/test_lost_lease_locations.py": ("slow",),
    "consumer/test_memory.py::test_what_a_record_counts_is_about_what_it_costs": ("slow",),
    "consumer/test_processes.py": ("slow",),
    "consumer/test_processes.py::test_nothing_is_lost_and_little_repeated_through_kills_pauses_and_reshards": (
        "spark",
        "slow",
    ),
    "contract/ports/test_every_write.py": ("slow",),
    "contract/ports/test_lease_table.py::test_a_row_without_a_sub_sequence_number_counts_as_one_with_0": (
        "slow",
    ),
    "core/leases/test_fleet_moves.py::test_nine_workers_that_join_one_move_no_more_in_other_draws": ("slow",),
    "days": ("slow",),
    "days/spark": ("spark", "slow"),
    "days/test_database_under_repair.py": (),
    "days/test_interrupted_put.py": (),
    "days/test_piped_producer.py": (),
    "delivery/test_many_kills.py": ("slow",),
    "delivery/test_changing_schema.py": ("spark", "slow"),
    "delivery/test_killed_backfills.py": ("spark", "slow", "soak"),
    "delivery/test_killed_deliveries.py": ("spark", "slow"),
    "delivery/test_deliver.py": ("spark", "slow"),
    "delivery/test_odd_records.py": ("spark", "slow"),
    "delivery/test_preview.py": ("spark", "slow"),
    "delivery/test_record_texts.py": ("spark", "slow"),
    "demo/test_demo.py": ("spark", "slow"),
    "demo/test_demo.py::test_kills_at_random_moments_change_nothing": ("spark", "slow", "soak"),
    "distributions": ("slow",),
    "distributions/test_stranger.py": ("interop",),
    "docs": ("slow",),
    "docs/test_alerts.py": (),
    "docs/test_deploy.py": (),
    "docs/test_pages.py": (),
    "docs/test_readme.py": ("spark", "slow"),
    "examples": ("spark", "slow"),
    "interop": ("interop",),
    "interop/test_fleet.py": (),
    "lakehouse": ("interop",),
    "local/test_command.py::test_bad_arguments_are_named": ("slow",),
    "local/test_crashes.py": ("slow",),
    "local/test_dynamodb.py::test_kinesis_loses_and_repeats_nothing_with_an_impatient_interpreter": ("slow",),
    "local/test_floods.py": ("slow",),
    "local/test_full_disk.py": ("slow",),
    "local/test_quotas.py::test_list_shards_has_a_rate_per_stream": ("slow",),
    "local/test_quotas.py::test_without_limits_nothing_is_refused": ("slow",),
    "local/test_replay.py::test_the_command_replays_in_a_process_of_its_own": ("slow",),
    "local/test_testing_page.py": ("slow",),
    "model": ("spark", "slow"),
    "model/test_actions.py": (),
    "model/test_logs.py": (),
    "producer/test_crowd.py": ("slow",),
    "queues/test_queue_processes.py": ("slow",),
    "recording/test_recorder.py::test_ctrl_c_keeps_what_was_read_and_the_same_command_goes_on": ("slow",),
    "s3a": ("interop",),
    "sim/test_fleet.py::test_a_fleet_at_rest_reads_a_third_of_what_whole_looks_in_every_round_would_cost": (
        "slow",
    ),
    "sim/test_fleet.py::test_a_fleet_that_starts_on_a_large_table_reads_it_in_parts_first": ("slow",),
    "sim/test_fleet.py::test_the_shards_of_workers_that_die_are_read_again_within_two_lease_times": ("slow",),
    "sim/test_kinds.py::test_a_seed_that_failed_once_stays_clean": ("slow",),
    "sim/test_kinds.py::test_the_same_seed_gives_the_same_history_in_every_process": ("slow",),
    "sim/test_many_seeds.py": ("slow",),
    "sim/test_mutants.py": ("slow",),
    "sim/test_simulator.py::test_500_shards_and_two_zones_of_a_hundred_workers_settle_at_250_and_250": (
        "slow",
    ),
    "site": ("slow",),
    "sim/test_load_shapes.py::test_a_jump_is_followed_sooner_by_more_frequent_measurements": ("slow",),
    "sim/test_load_shapes.py::test_over_a_load_shape_the_size_follows": ("slow",),
    "sizing/test_autoscaler.py": ("slow",),
    "sizing/test_planned_streams.py": ("slow",),
    "spark/queries": ("slow",),
    "spark/session": ("spark", "slow"),
    "spark/session/test_smoke.py": ("spark",),
    "spark/session/test_smoke.py::test_a_child_shard_is_read_only_after_the_batch_that_ended_its_parents": (
        "spark",
        "slow",
    ),
    "spark/session/test_smoke.py::test_a_streaming_write_copies_a_stream": ("spark", "slow"),
    "spark/session/test_smoke.py::test_available_now_reads_what_was_there_and_ends": ("spark", "slow"),
    "spark/test_imports.py": ("slow",),
    "spark/test_pushed_tasks.py": ("slow",),
    "spark_batches": ("spark", "slow"),
    "spark_kills/test_kills.py": ("spark", "slow"),
    "spark_kills/test_kills.py::test_executors_of_their_own_may_die_as_well": ("spark", "slow", "soak"),
    "typed": ("slow",),
    "upgrade/test_query.py": ("spark", "slow"),
}
"""Marks of the tests in a folder or a file of this one, or of one test with all its cases; the longest key that fits counts."""


def marks_of(path: Path, test: str | None = None) -> tuple[str, ...]:
    """Return the marks of the tests in a file, or of one of them."""
    found = path.relative_to(HERE)
    for each in (f"{found}::{test}", found, *found.parents):
        if str(each) in MARKS:
            return MARKS[str(each)]
    return ()


SET_BY_TESTS = {".": "soak", "contract/wire": "slow"}
"""By folder: on the longer one of a test's cases; on cases that ask other people's servers."""
_OF_OUR_MARKS = re.compile(r"((not )*(spark|slow|soak|interop)( (and|or) (?=.)|$))+")


def may_select(expression: str, path: Path) -> bool:
    """Return whether pytest's `-m EXPRESSION` selects a test of a file, as far as its marks are known before it is read.

    An expression with other marks, such as `timeout`, or with a mistake in it is left to pytest.
    """
    if not _OF_OUR_MARKS.fullmatch(expression):
        return True
    found = path.relative_to(HERE)
    tests = [marks for key, marks in MARKS.items() if key.startswith(f"{found}::")]
    added = [(), *((mark,) for folder, mark in SET_BY_TESTS.items() if found.is_relative_to(folder))]
    return any(
        eval(expression, {}, defaultdict(bool, dict.fromkeys((*marks, *more), True)))
        for marks in (marks_of(path), *tests)
        for more in added
    )
