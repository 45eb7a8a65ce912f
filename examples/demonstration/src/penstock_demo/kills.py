"""When and what to kill: a plan from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from penstock_demo.processes import ProcessKind

_KINDS: Final[tuple[ProcessKind | None, ...]] = (
    None,
    ProcessKind.JVM,
    ProcessKind.PLANNER,
    ProcessKind.WORKER,
)
# A whole restart takes seconds, a worker is replaced in a fraction of one.
_WEIGHTS: Final = (2, 1, 1, 3)
_DELAY_MAX_S: Final = 1.2


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Args:
        kind: The process that is killed; None for all of the query at once.
        after_batches: Batches that finish in the query's present life before.
        delay_s: Time that passes after those.
        in_batch: Whether it waits until a batch is planned and not committed.
    """

    kind: ProcessKind | None
    after_batches: int = 0
    delay_s: float = 0.0
    in_batch: bool = False

    def __str__(self) -> str:
        """Return the target in words."""
        return "the whole query" if self.kind is None else f"its {self.kind.value}"


def plan_kills(count: int, seed: int) -> list[Kill]:
    """Plan the kills of a run: the first ends the whole query in the middle of a batch, chance picks the others.

    Args:
        count: How many, from 0.
        seed: Chance.
    """
    chance = random.Random(seed)
    kills = [Kill(None, in_batch=True)]
    while len(kills) < count:
        (kind,) = chance.choices(_KINDS, _WEIGHTS)
        kills.append(Kill(kind, chance.randrange(2), round(chance.uniform(0, _DELAY_MAX_S), 3)))
    return kills[:count]
