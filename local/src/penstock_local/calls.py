"""The call log: how often each operation was called, on which shard, and how it was answered."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

RECENT_MAX = 1000
CALLERS_MAX = 1000
NAMES_MAX = 1000
_TEXT_CHARS_MAX = 256


class CallLog:
    """Counts per service and operation, per shard and per error code; owned by the server's loop."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all calls."""
        self._total: Counter[str] = Counter()
        self._by_shard: dict[str, Counter[str]] = {}
        self._errors: dict[str, Counter[str]] = {}
        self._by_caller: dict[str, Counter[str]] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)

    def add(
        self,
        now_ms: int,
        service: str,
        operation: str,
        *,
        resource: str,
        shards: Sequence[str],
        outcome: str,
        caller: str = "",
    ) -> None:
        """Count one call.

        Args:
            service: `kinesis`, `dynamodb`, `cloudwatch` or `sts`.
            operation: The service's name of the call; names after the first 1,000 are counted as `(others)`.
            resource: The stream or table, or an empty text.
            shards: The shards that the call touched.
            outcome: `ok`, an error code, or the kind of the fault that hit the call (`drop_after`, ...).
            caller: The access key id of the request; ids after the first 1,000 are counted as one, `(others)`.
        """
        name = f"{service}.{operation[:_TEXT_CHARS_MAX]}"
        if name not in self._total and len(self._total) >= NAMES_MAX:
            name = f"{service}.(others)"
        self._total[name] += 1
        if shards:
            by_shard = self._by_shard.setdefault(name, Counter())
            for shard in shards:
                by_shard[f"{resource}/{shard}"] += 1
        if caller not in self._by_caller and len(self._by_caller) >= CALLERS_MAX:
            caller = "(others)"
        self._by_caller.setdefault(caller, Counter())[name] += 1
        if outcome != "ok":
            self._errors.setdefault(name, Counter())[outcome] += 1
        self._recent.append(
            {
                "at_ms": now_ms,
                "operation": name,
                "resource": resource[:_TEXT_CHARS_MAX],
                "shards": list(shards),
                "outcome": outcome,
                "caller": caller,
            }
        )

    def describe(self) -> dict[str, Any]:
        """Return all counts and the last calls, as plain values."""
        return {
            "total": dict(self._total),
            "by_shard": {name: dict(counts) for name, counts in self._by_shard.items()},
            "errors": {name: dict(counts) for name, counts in self._errors.items()},
            "by_caller": {caller: dict(counts) for caller, counts in self._by_caller.items()},
            "recent": list(self._recent),
        }
