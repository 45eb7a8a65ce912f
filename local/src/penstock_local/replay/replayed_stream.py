"""A stream of a recording: its shards open and close when the clock reaches their moments."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_local.replay.recording_file import RecordingFile
from penstock_local.replay.replayed_shard import ReplayedShard, read_only_error
from penstock_local.shard import Shard
from penstock_local.stream import Change, Stream

_RETENTION_MS = 10 * 365 * 86_400_000
_CHANGES = frozenset({"delete", "setting"})


@dataclass(slots=True)
class ReplayedStream(Stream):
    """Implements `Stream` by a recording.

    Attributes:
        upcoming_shards: Shards that have not opened yet, by moment.
        closings: The moments at which shards will close, in order, each with its shard.
    """

    file: RecordingFile | None = None
    upcoming_shards: list[ReplayedShard] = field(default_factory=list)
    closings: list[tuple[int, ReplayedShard]] = field(default_factory=list)

    @property
    def retention_ms(self) -> int:
        """Return a retention that drops no record of a replay."""
        return _RETENTION_MS

    @property
    def next_change_ms(self) -> int | None:
        """Return when the next shard opens or closes; None if none will."""
        moments = [shard.opened_ms for shard in self.upcoming_shards[:1]] + [
            moment for moment, _ in self.closings[:1]
        ]
        return min(moments, default=None)

    def settle(self, now_ms: int) -> bool:
        """Carry out the due changes, those of the recording too; return whether there was one."""
        is_changed = Stream.settle(self, now_ms)
        is_resharded = False
        while self.upcoming_shards and self.upcoming_shards[0].opened_ms <= now_ms:
            self._open_shard(self.upcoming_shards.pop(0))
            is_resharded = True
        while self.closings and self.closings[0][0] <= now_ms:
            moment_ms, shard = self.closings.pop(0)
            shard.closed_ms = moment_ms
            is_resharded = True
        if is_resharded:
            self._reindex()
        return is_changed or is_resharded

    def _open_shard(self, shard: ReplayedShard) -> None:
        self.shards[shard.id] = shard
        for parent in (self.shards[name] for name in shard.parents if name in self.shards):
            parent.children = (*parent.children, shard.id)

    def begin_change(self, change: Change, status: str) -> None:
        """Start a change; refuse one of the shards."""
        if change.kind not in _CHANGES:
            assert self.file is not None, "a replayed stream has its file"
            raise read_only_error(self.file, f"Stream {self.name}")
        Stream.begin_change(self, change, status)

    def forget_expired(self, now_ms: int) -> list[Shard]:
        """Keep all shards."""
        del now_ms
        return []
