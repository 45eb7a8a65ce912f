"""The call log: how often each operation was asked for, on which shard, and how it was answered."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

RECENT_MAX = 1000
CALLERS_MAX = 1000
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/")


def caller_of(authorization: str) -> str:
    """The access key id that a request's signature names; empty for an unsigned one."""
    match = _CREDENTIAL.search(authorization)
    return match[1] if match else ""


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
            now_ms: Virtual time in milliseconds.
            service: `kinesis`, `dynamodb`, `cloudwatch` or `sts`.
            operation: The service's name of the call.
            resource: The stream or table, or an empty text.
            shards: The shards it touched.
            outcome: `ok`, an error code, or what a fault did to it (`drop_after`, ...).
            caller: The access key id of the request; those after the first 1,000 are counted as one, `(others)`.
        """
        name = f"{service}.{operation}"
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
                "resource": resource,
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
