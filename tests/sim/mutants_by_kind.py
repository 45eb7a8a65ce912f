"""All planted bugs, by the kind of world whose seeds show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock_sim.kinds import SeedKind
from sim.kcl3_mutants import KCL3_MUTANTS
from sim.mutants import MUTANTS, Mutant
from sim.producer_mutants import PRODUCER_MUTANTS
from sim.query_mutants import QUERY_MUTANTS
from sim.queue_mutants import QUEUE_MUTANTS
from sim.sink_mutants import SINK_MUTANTS
from sim.streams_mutants import STREAMS_MUTANTS

MUTANTS_BY_KIND: Final[Mapping[SeedKind, tuple[Mutant, ...]]] = {
    SeedKind.CONSUMERS: MUTANTS,
    SeedKind.QUERIES: QUERY_MUTANTS,
    SeedKind.KCL3: KCL3_MUTANTS,
    SeedKind.PRODUCERS: PRODUCER_MUTANTS,
    SeedKind.SINKS: SINK_MUTANTS,
    SeedKind.STREAMS: STREAMS_MUTANTS,
    SeedKind.QUEUES: QUEUE_MUTANTS,
}
