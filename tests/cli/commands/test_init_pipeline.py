"""The test of a project that `penstock init pipeline` writes: two runs by Spark's own command."""

import subprocess
import sys

import pytest

from penstock.cli.main import main

pytest.importorskip("httptools")
pytest.importorskip("pyspark.pipelines", reason="declarative pipelines begin with Spark 4.1")
pytest.importorskip("grpc", reason="pip install 'pyspark[pipelines]'")


@pytest.mark.timeout(1900)  # seconds on a free machine: fifty
def test_a_second_run_of_a_new_project_goes_on_where_the_first_one_ended(tmp_path, monkeypatch):
    folder = tmp_path / "my projects"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["init", "pipeline", "orders_lake"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=folder / "orders_lake",
        capture_output=True,
        text=True,
        timeout=1850,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
    assert not (folder / "orders_lake" / "state").exists()
