"""Replays recordings in a server: puts their streams into its store, and wakes waiting readers when records appear."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from penstock_local.errors import OptionError
from penstock_local.replay.recording_file import RecordingFile
from penstock_local.replay.replayed_shard import ReplayedShard
from penstock_local.replay.replayed_stream import ReplayedStream
from penstock_local.store import Store
from penstock_local.virtual_clock import VirtualClock

_TICK_S_MIN, _TICK_S_MAX = 0.02, 1.0


class Player:
    """The recordings of one server.

    Args:
        paths: Their files, each of another stream.

    Raises:
        OptionError: A file is damaged, or two are of one stream.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._streams: list[ReplayedStream] = []
        self._clock: VirtualClock | None = None
        self._store: Store | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported_counts: dict[str, int] = {}
        self._files: list[RecordingFile] = []
        try:
            self._files.extend(map(RecordingFile, paths))
            self._check_names()
        except BaseException:
            self.close()
            raise

    def _check_names(self) -> None:
        names = [file.metadata.stream.name for file in self._files]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"two recordings are of a stream {name}: replay them in two servers")

    @property
    def from_ms(self) -> int:
        """Return the earliest beginning of the recorded slices."""
        return min(file.metadata.recorded.from_ms for file in self._files)

    @property
    def until_ms(self) -> int:
        """Return the latest end of the recorded slices."""
        return max(file.metadata.recorded.until_ms for file in self._files)

    def load(self, store: Store, clock: VirtualClock) -> None:
        """Put the streams into a store."""
        self._store, self._clock = store, clock
        for file in self._files:
            stream = _build_stream(file, store, clock)
            stream.settle(clock.now_ms())
            store.adopt(stream)
            self._streams.append(stream)

    def start(self) -> None:
        """Wake waiting readers from now on, whenever records appear."""
        self._tick()

    def close(self) -> None:
        """Stop, and close the files."""
        if self._timer is not None:
            self._timer.cancel()
        for file in self._files:
            file.close()

    def state(self) -> dict[str, Any]:
        """Return the clock, the slice, and by stream how many records there are and how many have appeared."""
        assert self._clock is not None, "it was loaded"
        return {
            "now_ms": self._clock.now_ms(),
            "from_ms": self.from_ms,
            "until_ms": self.until_ms,
            "streams": {
                stream.name: {
                    "records": sum(shard.record_count for shard in _all_shards(stream)),
                    "appeared": sum(len(shard) for shard in _all_shards(stream)),
                }
                for stream in self._streams
            },
        }

    def describe(self) -> str:
        """Return a line with the moment and, by stream, how many of its records have appeared."""
        state = self.state()
        counts = [f"{name} {each['appeared']}/{each['records']}" for name, each in state["streams"].items()]
        moment = datetime.fromtimestamp(state["now_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
        return f"{moment.replace('+00:00', 'Z')}: {', '.join(counts)} records"

    def seconds_to(self, count: int) -> float:
        """Return the virtual seconds until records of `count` more moments have appeared; 0 after the last one.

        Raises:
            OptionError: The count is below 1.
        """
        assert self._clock is not None, "it was loaded"
        if count < 1:
            raise OptionError(f"a replay steps forwards by at least 1, not {count}")
        now_ms = self._clock.now_ms()
        arrivals = merge(
            *(shard.arrivals_after(now_ms) for each in self._streams for shard in _all_shards(each))
        )
        moments = list(islice((moment for moment, _ in groupby(arrivals)), count))
        return (moments[-1] - now_ms) / 1000 if moments else 0.0

    def _tick(self) -> None:
        """Report the records that have appeared to the store, and set the timer for the next ones."""
        assert self._clock is not None, "it was loaded"
        assert self._store is not None, "it was loaded"
        now_ms = self._clock.now_ms()
        upcoming: list[int] = []
        for stream in self._streams:
            self._store.settle(stream, now_ms)
            if stream.uid not in self._store.by_uid:
                continue  # it was deleted
            shards = list(stream.shards.values())
            changed = [
                shard
                for shard in shards
                if len(shard) != self._reported_counts.get(f"{stream.uid} {shard.id}", 0)
            ]
            if changed:
                self._reported_counts.update({f"{stream.uid} {shard.id}": len(shard) for shard in changed})
                self._store.queues.on_stream_change(stream, changed)
                self._store.on_change(stream, changed)
            moments = [shard.next_arrival_ms for shard in shards if isinstance(shard, ReplayedShard)]
            upcoming += [moment for moment in (*moments, stream.next_change_ms) if moment is not None]
        delay_s = self._clock.real_s_until(min(upcoming)) if upcoming else None
        # never later than in a second: the clock may be moved meanwhile
        delay_s = _TICK_S_MAX if delay_s is None else min(max(delay_s, _TICK_S_MIN), _TICK_S_MAX)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)


def _all_shards(stream: ReplayedStream) -> list[ReplayedShard]:
    open_shards = [shard for shard in stream.shards.values() if isinstance(shard, ReplayedShard)]
    return [*open_shards, *stream.upcoming_shards]


def _build_stream(file: RecordingFile, store: Store, clock: VirtualClock) -> ReplayedStream:
    """Return the stream of a recording, in the server's account and region. Its shards open and close at their recorded moments."""
    metadata = file.metadata
    from_ms, until_ms = metadata.recorded.from_ms, metadata.recorded.until_ms
    blank = store.blank_stream(
        metadata.stream.name,
        store.next_uid(clock.now_ms()),
        metadata.stream.created_ms,
        0,
        metadata.stream.mode,
    )
    stream = ReplayedStream(
        name=blank.name,
        arn=blank.arn,
        account=blank.account,
        region=blank.region,
        uid=blank.uid,
        created_ms=blank.created_ms,
        stamp_s=from_ms // 1000,
        mode=blank.mode,
        status="ACTIVE",
        retention_h=round(metadata.stream.retention_hours),
        file=file,
    )
    # A reshard after the slice is left out: no record shows it.
    before_slice_ms = min(from_ms, metadata.stream.created_ms)
    for recorded in metadata.shards:
        opened_ms = before_slice_ms if recorded.opened_ms is None else recorded.opened_ms
        if opened_ms < until_ms:
            shard = ReplayedShard(recorded, file, opened_ms, clock.now_ms)
            stream.upcoming_shards.append(shard)
            if recorded.closed_ms is not None and recorded.closed_ms < until_ms:
                stream.closings.append((recorded.closed_ms, shard))
    stream.upcoming_shards.sort(key=lambda shard: (shard.opened_ms, shard.index))
    stream.closings.sort(key=lambda entry: entry[0])
    stream.next_index = 1 + max((shard.index for shard in stream.upcoming_shards), default=-1)
    return stream
