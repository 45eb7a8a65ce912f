"""A checkpoint on its way to the lease table: a thread or a coroutine may wait for it."""

from __future__ import annotations

from concurrent.futures import Future

from penstock.core.position import Position
from penstock.errors import LeaseLost, PenstockError, Unavailable


class PendingCheckpoint:
    """A requested checkpoint. Its outcome is settled once, by the thread that advances the shard.

    Args:
        stream: Stream of the shard, for messages.
        shard_id: The shard, for messages.
        position: The last acknowledged position, which is to become the checkpoint.
        timeout_s: How long the caller may wait for the checkpoint.
    """

    def __init__(self, stream: str, shard_id: str, position: Position, timeout_s: float) -> None:
        self.position = position
        self.timeout_s = timeout_s
        self.outcome: Future[None] = Future()
        """Done when the checkpoint is durable; fails with `LeaseLost`."""
        self.outcome.set_running_or_notify_cancel()  # a cancelled wait does not cancel the checkpoint
        self._shard_id = shard_id
        self._where = f"stream {stream}, shard {shard_id}: checkpoint {position}"

    def on_durable(self) -> None:
        """Settle the checkpoint: the position is in the lease table."""
        if not self.outcome.done():
            self.outcome.set_result(None)

    def on_lost(self) -> None:
        """Settle the checkpoint: the lease was lost before the position was stored."""
        self._fail(LeaseLost(f"{self._where} was not confirmed before the lease went to another worker"))

    def on_timeout(self) -> None:
        """Settle the checkpoint: the caller has waited for `timeout_s`."""
        self._fail(self.timeout_error())

    def _fail(self, error: PenstockError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def timeout_error(self) -> Unavailable:
        """Return the error of a wait that timed out."""
        return Unavailable(
            f"{self._where}: the lease table gave no answer within {self.timeout_s} s; it is stored with a later "
            "renewal if this worker keeps the lease",
            operation="UpdateItem",
            resource=self._shard_id,
        )
