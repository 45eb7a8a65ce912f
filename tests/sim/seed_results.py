"""What tests of several kinds of seeds say of their results."""

import os
import subprocess
import sys

IMPORTS = "from penstock_sim.kinds import SeedKind; from penstock_sim.run import run_seed"
"""The first line of a program that runs seeds."""


def assert_clean(results):
    """No seed has broken a promise; of one that has, the end of its story is shown."""
    for result in results:
        told = "\n".join(result.story(60))
        assert result.violation is None, f"seed {result.seed}: {result.violation}\n{told}"


def outputs_by_hash_seed(program, hash_seeds):
    """Run a program of Python in processes whose sets have different orders; return its different outputs."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in hash_seeds
    }
