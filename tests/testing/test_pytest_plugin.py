"""The fixtures without the package of the embedded Kinesis."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["penstock_local"] = None  # an import of it fails as if it were not installed
"""
TEST = """
def test_orders(FIXTURE):
    pass
"""


@pytest.mark.parametrize("fixture", ["local_kinesis", "local_kinesis_server"])
def test_a_fixture_without_its_package_says_how_to_get_it(tmp_path, fixture):
    (tmp_path / "conftest.py").write_text(WITHOUT)
    (tmp_path / "test_orders.py").write_text(TEST.replace("FIXTURE", fixture))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    sentence = f"the fixture {fixture} needs the package penstock-local, which is not installed: pip install 'penstock[local]'"
    assert sentence in done.stdout.splitlines()
    assert "ModuleNotFoundError" not in done.stdout
    assert "Traceback" not in done.stdout
