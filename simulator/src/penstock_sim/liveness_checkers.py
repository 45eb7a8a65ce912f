"""Checks of liveness after the faults: every shard has a reader, the leases are even and stay, every record is read.

These checkers ask the checked code only which of two equal workers is first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.fleet_view import tie_break
from penstock.core.leases.lease_writes import Release, RequestHandover, Take
from penstock_sim.checker import Broken, Checker
from penstock_sim.events import leases
from penstock_sim.events.base import name_of

_NO_LIMITS: Final[Mapping[str, int]] = {}


class Covered(Checker):
    """L1: every lease that can be read has a live owner and a living reader."""

    invariant = "L1"

    def at_end(self) -> None:
        history = self.history
        names = {name_of(who) for who in history.alive}
        read = {(name_of(reader.who), reader.key) for reader in history.readers.values()}
        for key, row in history.rows.items():
            parents = [history.rows.get(parent) for parent in row.parents]
            if not history.is_owed(key):
                continue
            if row.is_ended or any(parent is not None and not parent.is_ended for parent in parents):
                continue
            owner = history.holder_of(row)
            if owner not in names:
                raise Broken(f"{key} belongs to {owner}, who does not live")
            if (owner, key) not in read:
                raise Broken(f"{key} belongs to {owner}, who does not read it")


class Balanced(Checker):
    """L2: leases are spread evenly, and once they are none moves any more."""

    invariant = "L2"

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write = event.write
        if self.history.is_quiet and isinstance(write, Take | RequestHandover | Release):
            raise Broken(f"{event.who} moves {write.key} ({event.kind}) although the fleet is balanced")

    def at_end(self) -> None:
        counts = dict.fromkeys(map(name_of, self.history.alive), 0)
        for key, row in self.history.rows.items():
            owner = self.history.holder_of(row)
            if not row.is_ended and owner in counts and self.history.is_owed(key):
                counts[owner] += 1
        if self.options.policy is BalancePolicy.BY_ZONE:
            zones: dict[str, dict[str, int]] = {}
            for worker, count in counts.items():
                zones.setdefault(worker.partition("/")[0], {})[worker] = count
            must_be_even({zone: sum(members.values()) for zone, members in zones.items()})
            for members in zones.values():
                must_be_even(members)
        else:
            must_be_even(counts, self.history.limits)


def must_be_even(counts: Mapping[str, int], limits: Mapping[str, int] = _NO_LIMITS) -> None:
    """Raise unless every worker has an even share, or as much of it as the limit allows.

    Workers do not know each other's limits: a lease that a full worker does not request stays with its owner. The remainder of
    the division belongs to the workers with the most leases.
    """
    if any(count > limits.get(worker, count) for worker, count in counts.items()):
        raise Broken(f"over the limits {dict(limits)}: {dict(sorted(counts.items()))}")
    fullest_first = sorted(counts, key=lambda worker: (-counts[worker], tie_break(worker)))
    base, remainder = divmod(sum(counts.values()), len(counts)) if counts else (0, 0)
    for place, worker in enumerate(fullest_first):
        share = base + (1 if place < remainder else 0)
        if counts[worker] < min(share, limits.get(worker, share)):
            raise Broken(f"uneven: {dict(sorted(counts.items()))}")


class AllConsumed(Checker):
    """L3: every shard is read: closed ones are finished, open ones have an unfinished lease."""

    invariant = "L3"

    def at_end(self) -> None:
        history = self.history
        for key, shard in history.shards.items():
            if not shard.stream.is_owed:
                continue
            row = history.rows.get(key)
            if not shard.is_closed and (row is None or row.is_ended):
                raise Broken(f"open shard {key} has no unfinished lease")
            if shard.is_closed and row is not None and not row.is_ended:
                raise Broken(f"closed shard {key} is not finished: {row.owner} at {row.checkpoint}")
            if row is not None and not row.is_ended and row.checkpoint.is_record:
                left = len(shard.sequences) - max(history.index_after(key, row.checkpoint), shard.trimmed)
                if left > 0:
                    raise Broken(f"{key} is at {row.checkpoint}, {left} handled records are not checkpointed")
