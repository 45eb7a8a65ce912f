"""What `dir()` shows of the packages that people import, and what they are told without Spark."""

import subprocess
import sys

import penstock
import penstock.schemas
import penstock.spark
import penstock.testing


def test_dir_shows_the_interface_and_nothing_else():
    assert dir(penstock) == sorted([*penstock.__all__, "__version__"])
    assert dir(penstock.schemas) == sorted(penstock.schemas.__all__)
    assert dir(penstock.spark) == sorted(penstock.spark.__all__)
    assert dir(penstock.testing) == sorted(penstock.testing.__all__)


def test_without_spark_an_import_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "try:\n"
        "    from penstock.spark import KinesisDataSource\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.startswith(
        "penstock.spark.KinesisDataSource needs the package pyspark, which is not installed: pip install"
    )


def test_without_the_extra_an_import_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['fastavro'] = None\n"
        "try:\n"
        "    from penstock.schemas import SchemaDecoder\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "not installed: pip install 'penstock[schemas]'" in said.stdout
