"""How often each situation of several streams in one lease table happened."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from penstock.core.leases.lease import Lease
from penstock_sim.history import HistoryEntry, name_of
from penstock_sim.streams_plan import StreamsPlan

_ADDED: Final = "situation: a stream is added to the lists"
_BESIDE: Final = "situation: workers with an old list run beside workers with a new one"
_LEFT: Final = "situation: a stream is left out of the lists"
_BACK: Final = "situation: a stream comes back into the lists, and its leases stand"
_DELETED: Final = "situation: a stream is deleted while it is read"
_ANEW: Final = "situation: a stream is created anew under its name"
_ANEW_READ: Final = "situation: a stream that was created anew is read beside leases of the old one"
_OLD_ANEW: Final = "situation: a stream is created anew under workers that read the old one"
_STOPPED: Final = "situation: a shard of a deleted stream stops"
_CANNOT: Final = "situation: a worker cannot start, since a stream of its list is gone or denied"
_QUIET: Final = "situation: a stream is resharded while another one gets no records"
_MIXED: Final = "situation: a worker reads shards of several streams at once"
_FIRST: Final = "situation: the first leases of a stream are created beside those of others"
_STANDSTILL: Final = "situation: a worker ends, since every shard that it held has stopped"
_SHY: Final = "fault: listing of a stream that is added"
_REFUSED: Final = "fault: listing of one stream"
_DENIED: Final = "fault: access to one stream"
EXPECTED: Final = (
    _ADDED,
    _BESIDE,
    _LEFT,
    _BACK,
    _DELETED,
    _ANEW,
    _ANEW_READ,
    _OLD_ANEW,
    _STOPPED,
    _CANNOT,
    _QUIET,
    _MIXED,
    _FIRST,
    _STANDSTILL,
    _SHY,
    _REFUSED,
    _DENIED,
)


class StreamsSituations:
    """Finds situations in one seed's history.

    Args:
        plan: The streams, drawn from the seed.
        met: Counted in.
    """

    def __init__(self, plan: StreamsPlan, met: Counter[str]) -> None:
        self._met = met
        self._quiet = {stream.name for stream in plan.streams if not stream.record_share}
        self._listed = plan.listed
        self._names: dict[str, str] = {}
        self._ids: dict[str, tuple[str, ...]] = {}
        self._alive: set[str] = set()
        self._keys: set[str] = set()
        self._read: dict[str, set[str]] = {}
        self._deleted: set[str] = set()

    def see(self, entry: HistoryEntry) -> None:
        """Handle one line."""
        handler = getattr(self, f"_on_{entry[1]}", None)
        if handler is not None:
            handler(*entry[2:])

    def _on_stream(self, stream_id: str, name: str, *_: Any) -> None:
        self._names[stream_id] = name

    def _on_list(self, _name: str, names: tuple[str, ...]) -> None:
        added, left = set(names) - set(self._listed), set(self._listed) - set(names)
        self._listed = names
        known = {self._names[key.rpartition(":")[0]] for key in self._keys}
        self._met[_ADDED] += len(added - known)
        self._met[_BACK] += len(added & known)
        self._met[_LEFT] += bool(left)

    def _on_up(self, who: str) -> None:
        self._alive.add(who)
        lists = {frozenset(self._ids[each]) for each in self._alive}
        self._met[_BESIDE] += len(lists) > 1

    def _on_reads(self, who: str, stream_ids: tuple[str, ...]) -> None:
        self._ids[who] = stream_ids

    def _on_down(self, who: str, _how: str) -> None:
        self._alive.discard(who)
        self._read.pop(who, None)

    def _on_standstill(self, _who: str) -> None:
        self._met[_STANDSTILL] += 1

    def _on_cannot_start(self, *_: Any) -> None:
        self._met[_CANNOT] += 1

    def _on_stream_deleted(self, stream_id: str, _name: str) -> None:
        self._deleted.add(stream_id)
        ids = {key.rpartition(":")[0] for keys in self._read.values() for key in keys}
        self._met[_DELETED] += stream_id in ids

    def _on_stream_anew(self, stream_id: str, name: str) -> None:
        self._met[_ANEW] += 1
        former = {each for each, named in self._names.items() if named == name} - {stream_id}
        self._met[_OLD_ANEW] += any(former & set(self._ids[who]) for who in self._alive)

    def _on_start(self, who: str, key: str, _epoch: int, _position: Any) -> None:
        stream_id = key.rpartition(":")[0]
        keys = self._read.setdefault(who, set())
        keys.add(key)
        self._met[_MIXED] += len({each.rpartition(":")[0] for each in keys}) > 1
        former = {each for each in self._deleted if self._names[each] == self._names[stream_id]} - {stream_id}
        self._met[_ANEW_READ] += any(each.rpartition(":")[0] in former for each in self._keys)

    def _on_gone(self, who: str, key: str, _epoch: int) -> None:
        self._read.get(who, set()).discard(key)

    def _on_failed(self, _who: str, key: str, _epoch: int, _reason: str) -> None:
        self._met[_STOPPED] += key.rpartition(":")[0] in self._deleted

    def _on_closed(self, key: str) -> None:
        name = self._names[key.rpartition(":")[0]]
        self._met[_QUIET] += bool(self._quiet - {name})

    def _on_write(self, who: str, write: Any, before: Lease | None, after: Lease | None) -> None:
        del before
        if after is None:
            self._keys.discard(write.key)
            return
        stream_id = write.key.rpartition(":")[0]
        known = {key.rpartition(":")[0] for key in self._keys}
        if write.key not in self._keys and name_of(who) in {name_of(each) for each in self._alive}:
            self._met[_FIRST] += stream_id not in known and bool(known)
        self._keys.add(write.key)
