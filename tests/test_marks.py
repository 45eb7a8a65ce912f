"""The marks of the tests: what is not marked `spark` starts no JVM, and the table names only folders that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from pyspark.find_spark_home import _find_spark_home

import spark_jvm
from marks import HERE, MARKS, marks_of, may_select

_SESSION = re.compile(r"\bSparkSession\.builder\b")


def test_every_entry_of_the_table_is_a_folder_or_a_file_with_tests_or_a_test():
    for place in MARKS:
        file, _, test = place.partition("::")
        path = HERE / file
        assert path.is_file() or any(path.rglob("test_*.py")), place
        assert not test or f"def {test}(" in path.read_text(encoding="utf-8"), place


def test_only_tests_with_the_mark_take_a_spark_session(request):
    takes = [
        item.nodeid
        for item in request.session.items
        if {"spark", "running_spark"} & set(item.fixturenames) and item.get_closest_marker("spark") is None
    ]
    assert takes == []
    opened = {path for path in HERE.rglob("test_*.py") if _SESSION.search(path.read_text(encoding="utf-8"))}
    assert {str(path) for path in opened - {HERE / "test_marks.py"} if "spark" not in marks_of(path)} == set()


def test_a_test_without_the_mark_starts_no_jvm(tmp_path):
    done = subprocess.run(
        [f"{_find_spark_home()}/bin/spark-submit", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode != 0
    assert "started Java without the mark spark" in done.stderr


def test_the_longest_path_that_a_file_lies_in_gives_its_marks():
    assert marks_of(HERE / "core" / "test_lease.py") == ()
    assert marks_of(HERE / "spark" / "test_reader.py") == ()
    assert marks_of(HERE / "spark" / "session" / "test_source.py") == ("spark", "slow")
    assert marks_of(HERE / "spark" / "session" / "test_smoke.py") == ("spark",)
    kinds = HERE / "sim" / "test_kinds.py"
    assert marks_of(kinds, "test_the_same_seed_gives_the_same_history_in_every_process") == ("slow",)
    assert marks_of(kinds, "test_no_promise_is_broken") == ()


def test_links_of_sparks_home_lead_to_the_package_itself_and_dead_ones_are_replaced(tmp_path, monkeypatch):
    package = Path(pyspark.__file__).parent.resolve()
    tree = tmp_path / "tree"  # a working tree with a link to another one's environment
    tree.symlink_to(package.parent, target_is_directory=True)
    monkeypatch.setattr(
        "spark_jvm.find_spec", lambda _: SimpleNamespace(origin=str(tree / package.name / "__init__.py"))
    )
    monkeypatch.setattr("spark_jvm.HOME", tmp_path / "home")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "jars").symlink_to(tmp_path / "gone")
    assert spark_jvm.jvm_environ()["SPARK_HOME"] == str(tmp_path / "home")
    links = {link.name: link.readlink() for link in (tmp_path / "home").iterdir()}
    assert links == {name: package / name for name in ("bin", "jars", "sbin")}


@pytest.mark.parametrize(
    ("expression", "selects"),
    [
        ("slow and spark", False),
        ("not slow and not interop", True),
        ("soak", True),  # a case of a test may have it
        ("timeout", True),
        ("slow and", True),
        ("slow spark", True),
        ("not", True),
    ],
)
def test_a_file_is_left_unread_only_if_its_marks_decide(expression, selects):
    assert may_select(expression, HERE / "core" / "test_lease.py") == selects
