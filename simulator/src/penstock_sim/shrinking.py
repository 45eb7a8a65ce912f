"""A failing scenario made smaller: with as few faults, workers and settings as still break the same invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from penstock_sim.plan import DELIVERY, FaultPlan, QueryPlan, Scenario, SinkPlan, StreamsPlan

RUNS_MAX: Final = 150


def shrink(scenario: Scenario, breaks: Callable[[Scenario], bool], runs_max: int = RUNS_MAX) -> Scenario:
    """Return the smallest scenario that was found in so many runs and still breaks the same invariant.

    Args:
        scenario: One that breaks an invariant.
        breaks: Runs a scenario; True when it breaks the same invariant.
        runs_max: Runs before it is left as it is.
    """
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            if runs >= runs_max:
                return scenario
            runs += 1
            if breaks(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    plain = [name for name in scenario.workers if name not in scenario.queries]
    for name in reversed(plain if len(scenario.workers) > 1 else []):
        workers = tuple(each for each in scenario.workers if each != name)
        yield replace(
            scenario, workers=workers, foreign=scenario.foreign - {name}, leavers=scenario.leavers - {name}
        )
    simple: dict[str, Any] = {"limits": (), "delivery": DELIVERY, "retention_s": None}
    for name, value in simple.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})
    off: Any = FaultPlan()
    for each in _changed(scenario.faults, off):
        yield replace(scenario, faults=replace(scenario.faults, **{each: getattr(off, each)}))
    if scenario.query_plan.executor_count != QueryPlan().executor_count:
        yield replace(scenario, query_plan=QueryPlan(scenario.query_plan.options))
    yield from _with_calmer_plan(scenario)


def _with_calmer_plan(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.sinks is not None:
        calm: Any = SinkPlan()
        for each in _changed(scenario.sinks, calm):
            if each not in {"workers", "options"}:
                yield replace(scenario, sinks=replace(scenario.sinks, **{each: getattr(calm, each)}))
    if scenario.streams is not None:
        still: Any = StreamsPlan()
        for each in _changed(scenario.streams, still):
            if each in {"rollouts", "deletions", "added_refused_s", "cold_start_s"}:
                yield replace(scenario, streams=replace(scenario.streams, **{each: getattr(still, each)}))


def _changed(value: Any, default: Any) -> list[str]:
    return [each for each in default.__struct_fields__ if getattr(value, each) != getattr(default, each)]


def as_test(scenario: Scenario, drawn: Scenario, draw: Callable[[int], Scenario]) -> str:
    """Return a test that runs a scenario, written as the differences from the one that its seed draws."""
    changes = [f"        {name}={_show(getattr(scenario, name))}," for name in _changed(scenario, drawn)]
    return "\n".join(
        [
            f"def test_seed_{scenario.seed}_stays_clean():",
            f"    drawn = {draw.__name__}({scenario.seed})",
            *(
                ["    scenario = replace(", "        drawn,", *changes, "    )"]
                if changes
                else ["    scenario = drawn"]
            ),
            "    result = run_scenario(scenario)",
            "    assert result.violation is None, show(result)",
        ]
    )


def _show(value: Any) -> str:
    """Show a value as code; of a plan only the fields that differ from their defaults."""
    if not isinstance(value, FaultPlan | QueryPlan | SinkPlan | StreamsPlan):
        return repr(value)
    given = ", ".join(f"{name}={getattr(value, name)!r}" for name in _changed(value, type(value)()))
    return f"{type(value).__name__}({given})"
