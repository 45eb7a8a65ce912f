"""A stream of a recording: its shards open and close when the clock reaches their moments."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_local.replay.recording_file import RecordingFile
from penstock_local.replay.replayed_shard import ReplayedShard, read_only
from penstock_local.shard import Shard
from penstock_local.stream import Change, Stream

_KEPT_MS = 10 * 365 * 86_400_000
_CHANGES = frozenset({"delete", "setting"})


@dataclass(slots=True)
class ReplayedStream(Stream):
    """Implements `Stream` by a recording.

    Attributes:
        file: The recording.
        upcoming: Shards that have not opened yet, by moment.
        closing: Shards that have not closed yet, by moment.
    """

    file: RecordingFile | None = None
    upcoming: list[ReplayedShard] = field(default_factory=list)
    closing: list[tuple[int, ReplayedShard]] = field(default_factory=list)

    @property
    def retention_ms(self) -> int:
        """Return a retention that drops no record of a replay."""
        return _KEPT_MS

    @property
    def next_change_ms(self) -> int | None:
        """Return when the next shard opens or closes."""
        moments = [shard.opened_ms for shard in self.upcoming[:1]] + [
            moment for moment, _ in self.closing[:1]
        ]
        return min(moments, default=None)

    def settle(self, now_ms: int) -> bool:
        """Carry out the changes that are due, those of the recording too."""
        is_changed = Stream.settle(self, now_ms)
        is_resharded = False
        while self.upcoming and self.upcoming[0].opened_ms <= now_ms:
            self._open(self.upcoming.pop(0))
            is_resharded = True
        while self.closing and self.closing[0][0] <= now_ms:
            moment_ms, shard = self.closing.pop(0)
            shard.closed_ms = moment_ms
            is_resharded = True
        if is_resharded:
            self._reindex()
        return is_changed or is_resharded

    def _open(self, shard: ReplayedShard) -> None:
        self.shards[shard.id] = shard
        for parent in (self.shards[name] for name in shard.parents if name in self.shards):
            parent.children = (*parent.children, shard.id)

    def begin(self, change: Change, status: str) -> None:
        """Start a change; refuse one of the shards."""
        if change.kind not in _CHANGES:
            assert self.file is not None, "a replayed stream has its file"
            raise read_only(self.file, f"Stream {self.name}")
        Stream.begin(self, change, status)

    def forget_expired(self, now_ms: int) -> list[Shard]:
        """Keep all shards."""
        del now_ms
        return []
