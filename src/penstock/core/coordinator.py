"""The lease coordinator: a pure machine that decides what one worker creates, takes, renews, reads and gives up.

`Coordinator.handle(event, now_s, chance)` takes one event and answers effects, in the order in which they are to
be begun. The shell (`penstock.consumer`, or the simulator) does them and answers with events. One event at a
time; time and chance are arguments; the machine never waits: `next_wake_s` says when it wants a `Tick`.

| effect (to do) | answered by |
|---|---|
| `EnsureTable()` | `TableReady` / `TableFailed` |
| `ScanTable()` | `ScanDone` / `ScanFailed` |
| `WriteLease(write_id, write)` | `WriteDone(write_id, write, Applied / Refused / NotDone / UNKNOWN)` |
| `FetchLease(key)` | `LeaseFetched(key, lease or None)` / `FetchFailed` |
| `ListShards(purpose, filter_type, timestamp_ms)` | `ListingDone` / `ListingFailed` |
| `StartReader(key, epoch, position, lease, deliver_until_s)` | later `CheckpointRequested`, `ReaderProgress`, and at last exactly one of `ShardDrained`, `ReaderFailed`, or `ReaderStopped` after a `StopReader` |
| `StopReader(key, epoch, why)` | `ReaderStopped` (unless `ShardDrained` or `ReaderFailed` is on its way already) |
| `ExtendDelivery(key, epoch, deliver_until_s)` | nothing: move the deadline of that reader |
| `CheckpointStands(key, epoch, position)` | nothing: tell whoever waits for that checkpoint |
| `Report(topic, level, message, key, reason)` | nothing: log it, count it |
| `Stopped()` | nothing: the last effect of all |

Events that come on their own: `Tick` (due at `next_wake_s`), `StopRequested`. Every call is answered by exactly
one event, however it ends. Events about a reader carry the epoch of its `StartReader`; stale ones are ignored.

Writes on one lease are done one after the other (the machine never has two under way for one key). Writes of
different leases may run in parallel, heartbeats (`is_heartbeat`) first.
"""

from __future__ import annotations
