import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from real_threads import tiny_stream
from virtual_world import TinyKinesis, World

from penstock.runtime.memory_lease_table import MemoryLeaseTable


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def stream() -> TinyKinesis:
    return tiny_stream(2)


@pytest.fixture
def table() -> MemoryLeaseTable:
    return MemoryLeaseTable("app")
