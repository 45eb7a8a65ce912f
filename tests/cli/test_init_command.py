"""`penstock init`: the files of a project, and its answers to names that cannot be used."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.cli.main import main

FILES = {
    ".gitignore",
    "README.md",
    "spark-pipeline.yml",
    "conf/spark-defaults.conf",
    "test_pipeline.py",
    "transformations/by_country.sql",
    "transformations/large_orders.py",
    "transformations/tables.py",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "größe: 'a b'"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_project_has_its_names_in_every_file(here, capsys):
    assert main(["init", "pipeline", "lake", "--stream", "eu.orders"]) == 0
    found = files(here / "lake")
    printed = capsys.readouterr().out
    assert set(found) == FILES
    for name in FILES:
        assert f"  {name}\n" in printed
    spec = yaml.safe_load(found["spark-pipeline.yml"])
    assert spec["name"] == "lake"
    assert spec["storage"] == f"file://{here}/lake/state/checkpoints"
    assert f"spark.sql.warehouse.dir file://{here}/lake/state/tables\n" in found["conf/spark-defaults.conf"]
    assert 'STREAM = "eu.orders"' in found["transformations/tables.py"]
    assert '.option("applicationName", "lake")' in found["transformations/tables.py"]
    assert '{"streamName": "eu.orders-large"}' in found["transformations/large_orders.py"]


def test_the_programs_of_a_project_can_be_read(here):
    assert main(["init", "pipeline", "lake"]) == 0
    found = files(here / "lake")
    for name in (name for name in FILES if name.endswith(".py")):
        compile(found[name], name, "exec")


def test_the_programs_of_a_project_are_formatted(here):
    pytest.importorskip("ruff", reason="the environment of the oldest versions has no ruff")
    assert main(["init", "pipeline", "lake"]) == 0
    ruff = [sys.executable, "-m", "ruff"]
    limits = ["--isolated", "--line-length", "110", "--no-cache", "lake"]
    for command in (["check", "--select", "E4,E7,E9,F,I,UP"], ["format", "--check"]):
        done = subprocess.run([*ruff, *command, *limits], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_an_empty_folder_is_filled_and_any_other_is_left_alone(here, capsys):
    (here / "lake").mkdir()
    assert main(["init", "pipeline", "lake"]) == 0
    before = files(here)
    assert main(["init", "pipeline", "lake", "--stream", "returns"]) == 2
    assert "is not empty: choose another name" in capsys.readouterr().err
    (here / "notes").write_text("mine", encoding="utf-8")
    assert main(["init", "pipeline", "notes"]) == 2
    assert "exists and is not a folder" in capsys.readouterr().err
    (here / "away").symlink_to(here / "nowhere")
    assert main(["init", "pipeline", "away"]) == 2
    assert {name: text for name, text in files(here).items() if name != "notes"} == before


@pytest.mark.parametrize("name", ["a-b", "1a", "ab", "größe", "a/b", "..", "a b", "a" * 101, "lake\n"])
def test_a_name_that_is_no_identifier_is_refused(here, capsys, name):
    assert main(["init", "pipeline", name]) == 2
    assert "is not an identifier: write a letter" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lake", "--stream", "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"],
            "is not a name of a stream",
        ),
        (["lake", "--stream", 'a"b'], "is not a name of a stream"),
    ],
)
def test_another_mistake_is_refused(here, capsys, words, message):
    assert main(["init", "pipeline", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_folder_that_spark_cannot_name_is_refused(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a;b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["init", "pipeline", "lake"]) == 2
    assert "holds ';', which Spark's paths cannot hold" in capsys.readouterr().err


def test_a_kind_is_required_and_the_nearest_one_is_named(capsys):
    with pytest.raises(SystemExit) as end:
        main(["init"])
    assert end.value.code == 2
    with pytest.raises(SystemExit):
        main(["init", "pipelines", "lake"])
    assert "pipeline" in capsys.readouterr().err


def test_a_package_in_a_zip_archive_finds_its_own_files(tmp_path):
    archive, package = tmp_path / "penstock.zip", Path(penstock.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for each in package.rglob("*"):
            if each.suffix != ".pyc":
                file.write(each, each.relative_to(package.parent))
    program = (
        "import penstock.cli.overview.page_frame\n"  # the dashboard's style and script
        "from penstock.cli.main import main\n"
        "main(['init', 'pipeline', 'lake'])"
    )
    environment = os.environ | {"PYTHONPATH": str(archive)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(files(tmp_path / "lake")) == FILES
