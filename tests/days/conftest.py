"""Stories of ordinary days: Penstock from start to end as its users live it.

A story
- is one thing that happens to a team on an ordinary day, and its name says it: `test_a_stream_is_quiet_over_a_weekend`;
- is written from the documentation, with what users import: no private name, no fake, no port of its own;
- leaves every option at its default. One that is set has its reason in the story, not in the clock of the test;
- uses the real parts: the embedded Kinesis with its quotas, processes where a user has processes, Spark where he has Spark;
- ends with an exact count: each record once, or which ones twice and why, and what else the user looks at (exit codes, log,
  `health()`, `penstock leases`);
- waits for conditions and never sleeps.

One file holds one story, or a few short ones of a kind: `tests/days/test_<story>.py`. They are `slow`; one that takes less than three
seconds has a line of its own in `tests/marks.py` and runs in `make test`. Stories with Spark are in `tests/days/spark`.

Fixtures: `local_kinesis` comes with the package, and is an empty server of the story's own to which the environment leads;
`programs` starts what users run (see `tests/user_programs.py`).
"""

from __future__ import annotations

import pytest

from user_programs import Programs


@pytest.fixture
def programs(local_kinesis, tmp_path):
    """Programs whose environment leads to the server of the story."""
    made = Programs(tmp_path)
    yield made
    made.end()
