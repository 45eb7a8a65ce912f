"""A limit of threads, as a container has it: further ones of Penstock cannot be started."""

import threading


def leave_threads(monkeypatch, count: int, name: str = "penstock") -> None:
    """Leave room for this many threads of Penstock whose names begin like this."""
    start, started = threading.Thread.start, []

    def start_within(thread):
        if thread.name.startswith(name):
            if len(started) >= count:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_within)
