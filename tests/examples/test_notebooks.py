"""Every notebook of the examples runs from its first cell to its last, and shows what its text says."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Jupyter's own
    import nbformat
    from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
LAG_HEAD = "".join(
    f"<th>{name}</th>" for name in ("stream", "shard", "lag in s", "records", "bytes", "leases held", "of")
)


def executed(name, folder, monkeypatch):
    """Return the outputs of a notebook's code cells, which a kernel of this environment has run in an empty folder."""
    for variable in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    (folder / "work").mkdir()
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder / "work")}}
    )
    client.execute()
    return [cell["outputs"] for cell in notebook.cells if cell.cell_type == "code"]


def said(outputs, kind="text/html"):
    """Return what the cells print, or display as a kind of document, cell by cell, without those that show nothing."""
    texts = []
    for cell in outputs:
        printed = [output["text"] for output in cell if output.get("name") == "stdout"]
        shown = [output["data"][kind] for output in cell if kind in output.get("data", {})]
        texts += ["".join(printed + shown)] if printed or shown else []
    return texts


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_listed_and_holds_no_outputs(name):
    assert f"[{name}.ipynb]({name}.ipynb)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    document = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"]] == []
    assert [cell["metadata"] for cell in document["cells"] if cell["metadata"]] == []


def test_only_these_two_are_run():
    assert NOTEBOOKS == ["consumer", "first_look"]
    assert sys.prefix != sys.base_prefix, "a kernel named python3 is looked for in this environment first"


@pytest.mark.timeout(300)
def test_the_consumers_notebook_shows_frames_and_goes_on_where_the_first_worker_stopped(
    tmp_path, monkeypatch
):
    read, frame, sums, later = said(executed("consumer", tmp_path, monkeypatch))
    assert read == "200 records of 2 shards\n"
    assert "<th>approximateArrivalTimestamp</th>" in frame
    assert frame.count("shardId-00000000000") == 5
    assert [int(count) for count in re.findall(r"<td>(\d+)</td>\s*<td>\d+</td>", sums)] == [29] * 4 + [28] * 3
    assert later == "orders 200 to 259, 60 of them\n"


@pytest.mark.timeout(600)
def test_the_first_look_shows_a_batch_the_querys_lag_and_the_children_of_a_split_shard(tmp_path, monkeypatch):
    outputs = executed("first_look", tmp_path, monkeypatch)
    batch, streamed, before, after_split, by_shard, after = said(outputs)
    assert [int(count) for count in re.findall(r"<td>customer-\d</td>\s*<td>(\d+)</td>", batch)] == [
        *[29] * 4,
        *[28] * 3,
    ]
    assert (streamed, after_split) == ("200 orders\n", "300 orders\n")
    assert LAG_HEAD in before
    assert re.findall(r"<td>orders</td><td>(shardId-\d+)</td><td>[\d,]+\.\d</td>", before) == [
        "shardId-000000000000",
        "shardId-000000000001",
    ]
    counts = re.findall(r"<th>(shardId-\d+)</th>\s*<td>(\d+)</td>", by_shard)
    assert sum(int(count) for _, count in counts) == 300
    assert {shard for shard, _ in counts} > {"shardId-000000000000", "shardId-000000000001"}
    assert "shardId-000000000002" in after
