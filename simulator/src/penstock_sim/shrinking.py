"""A failing scenario made smaller: with as few faults, workers and settings as still break the same invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from penstock_sim.plan import DELIVERY, Scenario

RUNS_MAX: Final = 150
_KEPT: Final = frozenset({"workers", "options", "streams", "listed", "is_calm"})
"""Fields of plans without which another world would be run."""


def shrink(scenario: Scenario, breaks: Callable[[Scenario], bool], runs_max: int = RUNS_MAX) -> Scenario:
    """Return the smallest scenario that was found in so many runs and still breaks the same invariant.

    Args:
        breaks: Runs a scenario; True when it breaks the same invariant.
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
    for name in ("faults", "query_plan", "producers", "sinks", "streams", "queues"):
        plan = getattr(scenario, name)
        calm = None if plan is None else type(plan)()
        for each in () if plan is None else _changed(plan, calm):
            if each not in _KEPT:
                yield replace(scenario, **{name: replace(plan, **{each: getattr(calm, each)})})


def _changed(value: Any, default: Any) -> list[str]:
    return [each for each in default.__struct_fields__ if getattr(value, each) != getattr(default, each)]


def as_test(scenario: Scenario, drawn: Scenario, draw: Callable[[int], Scenario]) -> str:
    """Return a test that runs a scenario, written as the differences from the one that its seed draws."""
    changes = [f"        {name}={getattr(scenario, name)!r}," for name in _changed(scenario, drawn)]
    return "\n".join(
        [
            f"def test_seed_{scenario.seed}_stays_clean():",
            "    scenario = replace(",
            f"        {draw.__name__}({scenario.seed}),",
            *changes,
            "    )",
            "    result = run_scenario(scenario)",
            "    assert result.violation is None, show(result)",
        ]
    )
