"""Spark finds the source by itself, and `import penstock` needs none of the extras."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_python(code, *, without=()):
    """Run code in a process of its own, in which some packages cannot be imported."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    script = f"import sys\n{blocked}{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_module_that_spark_looks_for_offers_the_source():
    import pyspark_penstock

    assert pyspark_penstock.DefaultSource.name() == "kinesis"


def test_the_module_that_spark_looks_for_loads_neither_the_sdk_nor_arrow():
    done = run_python(
        """
        import pyspark_penstock
        heavy = [name for name in ("boto3", "botocore", "pyarrow", "pandas", "moto", "rich") if name in sys.modules]
        print(pyspark_penstock.__all__, heavy)
        """
    )
    # pyspark itself may load pandas and Arrow where they are installed; ours must not add the SDK or the rest.
    loaded = done.stdout.split("] ", 1)[1]
    assert "DefaultSource" in done.stdout, done.stderr
    assert not any(name in loaded for name in ("boto3", "botocore", "moto", "rich"))


@pytest.mark.parametrize("missing", ["pyspark", "pyspark.sql.datasource", "penstock"])
def test_the_module_that_spark_looks_for_never_raises(missing):
    done = run_python(
        "import pyspark_penstock; print(hasattr(pyspark_penstock, 'DefaultSource'))", without=[missing]
    )
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_penstock_is_imported_without_spark_arrow_or_the_embedded_server():
    done = run_python(
        """
        import penstock
        from penstock import Consumer, PenstockError
        import penstock.wiring, penstock.spark.options.spark_options
        print("fine")
        """,
        without=["pyspark", "pyarrow", "pandas", "moto", "httptools", "cbor2"],
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_public_packages_only_re_export():
    import penstock

    for name in penstock.__all__:
        assert getattr(penstock, name).__module__.startswith("penstock.")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = penstock.Nothing
