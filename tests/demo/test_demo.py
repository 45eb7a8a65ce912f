"""The demonstration as a user runs it: verified through a reshard and kills, with clear messages for wrong calls."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run_demo(*arguments, timeout_s):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environ,
        check=False,
    )


@pytest.mark.timeout(800)
def test_a_small_demo_is_verified_through_a_reshard_and_a_kill():
    done = run_demo("--records", "6000", timeout_s=780)
    assert done.stdout.splitlines()[-1] == "verified: 6000 flights, 0 lost, 0 duplicated", (
        done.stdout + done.stderr
    )
    assert done.returncode == 0
    assert "SIGKILL to the whole query in the middle of batch" in done.stdout
    assert "was split into" in done.stdout
    assert "were merged into" in done.stdout


@pytest.mark.timeout(2400)
def test_kills_at_random_moments_change_nothing():
    done = run_demo("--records", "4000", "--kills", "20", "--seed", "1", timeout_s=2390)
    assert done.stdout.splitlines()[-1] == "verified: 4000 flights, 0 lost, 0 duplicated", (
        done.stdout + done.stderr
    )
    assert done.stdout.count("SIGKILL") == 20


def test_wrong_arguments_are_refused_in_a_line(tmp_path):
    (tmp_path / "something").touch()
    for arguments, message in [
        (("--records", "5"), "--records 5: choose 100 to 336776"),
        (("--kills", "-1"), "--kills -1: expected at least 0"),
        (("--keep", str(tmp_path)), "it must be a new or an empty folder"),
    ]:
        done = run_demo(*arguments, timeout_s=60)
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr
