"""The adapters of a consumer are opened."""

import subprocess
import sys

PROGRAM = """
import sys

from penstock import wiring
from penstock.consumer.consumer import open_ports

loaded = set()
wiring.begin_opening = lambda table: loaded.update(sys.modules)
open_ports("billing", {"region": "eu-west-1"}, 30.0, may_push=True)
assert "penstock.aws.fan_out" in loaded
print(*(name for name in sys.modules if name.startswith("penstock") and name not in loaded))
"""


def test_all_adapters_are_loaded_before_the_thread_of_the_lease_table_begins():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
