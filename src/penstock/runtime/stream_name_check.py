"""Checks that a name still refers to the same stream: streams can be deleted and created again under the same name.

Calls name a stream by its name or ARN, which a later stream may have too. The later stream refuses a position in a shard of the
earlier one, but it answers listings and starting positions, with its own shards and records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.shard import StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import StreamChanged

_TRUSTED_S: Final = 10.0
"""How long an answer counts: to delete a stream and create another one takes longer."""


class StreamNameCheck:
    """Checks that a name still refers to one stream. Thread-safe. Create it just after a call has described the stream.

    Args:
        name: Name or ARN.
        identity: The stream to which the name must refer.
        fetch_summary: Describes the stream of a name.
        describe: Makes the error, given the stream that has the name now; None: an error for workers.
    """

    def __init__(
        self,
        name: str,
        identity: StreamIdentity,
        fetch_summary: Callable[[str], StreamSummary],
        now_s: Callable[[], float],
        *,
        describe: Callable[[StreamIdentity], StreamChanged] | None = None,
    ) -> None:
        self._name = name
        self._identity = identity
        self._fetch_summary = fetch_summary
        self._now_s = now_s
        self._describe = describe or self._describe_for_worker
        self._checked_s = now_s()
        self.change_error: StreamChanged | None = None
        """The error that `check` has raised; None so far."""

    def check(self) -> None:
        """Check that the name still refers to the stream, unless that was done in the last ten seconds.

        Raises:
            StreamChanged: Another stream has the name now.
            PenstockError: The service did not answer, or knows no stream of this name.
        """
        now_s = self._now_s()
        if now_s - self._checked_s < _TRUSTED_S:
            return
        found = self._fetch_summary(self._name).identity
        if found != self._identity:
            self.change_error = self._describe(found)
            raise self.change_error
        self._checked_s = now_s

    def _describe_for_worker(self, found_identity: StreamIdentity) -> StreamChanged:
        return StreamChanged(
            f"stream {self._name} was deleted and created again: it was created at {found_identity.created_ms} ms, and the one "
            f"that this worker reads at {self._identity.created_ms} ms. Restart the worker to read the new stream"
        )
