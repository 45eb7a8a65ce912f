"""A world of producers: they put into a stream that is resharded, through calls that fail in every way.

In some worlds consumers read their records.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_sim.events.base import HistoryEntry
from penstock_sim.faults import Scenario
from penstock_sim.process import SimProcess
from penstock_sim.producer import SimProducer, SimPuts
from penstock_sim.producer_plan import ProducerPlan
from penstock_sim.world import World


class ProducerWorld(World):
    """One run of one scenario with producers, and perhaps with consumers."""

    def __init__(
        self, scenario: Scenario, plan: ProducerPlan, listener: Callable[[HistoryEntry], None]
    ) -> None:
        super().__init__(scenario, listener)
        self._plan = plan
        self._puts = SimPuts(self, plan)

    def make_worker(self, name: str) -> SimProcess:
        """Return a new producer or consumer of this name, not begun yet."""
        if name not in self._plan.workers:
            return super().make_worker(name)
        return SimProducer(
            self,
            name,
            self.next_incarnation(name),
            on_gone=self.on_worker_gone,
            plan=self._plan,
            puts=self._puts,
        )

    def is_done(self) -> bool:
        """Whether every record is settled."""
        return super().is_done() and all(
            worker.is_done for worker in self.workers.values() if isinstance(worker, SimProducer)
        )
