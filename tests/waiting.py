"""Waiting in tests: for a condition, and no longer than a busy machine may take."""

from __future__ import annotations

import threading
import time

DEADLINE_S = 90.0


def wait_until(is_true, what="what is expected", deadline_s=DEADLINE_S, poll_s=0.05):
    """Wait until a condition holds; fail with what was waited for when it does not come."""
    end_s = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < end_s, f"waited {deadline_s:g} s for {what}"
        threading.Event().wait(poll_s)


def wait_by_limited_calls(is_true, what, deadline_s=DEADLINE_S):
    """Wait for a condition that is asked by GetRecords or ListStreamConsumers: five a second are allowed, and others call them."""
    wait_until(is_true, what, deadline_s, poll_s=1.0)
