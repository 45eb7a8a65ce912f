"""The matrices and what a release needs: `nox -l` lists the sessions, `nox -s NAME` runs one.

The tests of a matrix have environments of their own, which the make targets build; a session only chooses them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
SPARK_LINES = {"4.0": "4.0.2", "4.1": "4.1.*", "4.2": "4.2.*", "4.3": "4.3.*"}
DISTRIBUTIONS = {"penstock": ROOT, "penstock-local": ROOT / "local"}
EXTRAS = "arrow,cli,local,otel,schemas,spark,sql"
nox.options.sessions = []
nox.options.error_on_missing_interpreters = True


def make(session: nox.Session, *words: str) -> None:
    """Run a make target with this Python."""
    session.run("make", f"PYTHON={sys.executable}", *words, *session.posargs, external=True)


def spark(session: nox.Session, line: str) -> None:
    """Run the Spark tests with one line of Spark."""
    make(session, "test-spark-lines", f"SPARK_LINES={line}")


for _name, _line in SPARK_LINES.items():
    nox.session(
        lambda session, line=_line: spark(session, line), name=f"spark-{_name}", python=False
    ).__doc__ = f"The Spark tests with Spark {_line}."


@nox.session(name="spark-3.5", python=False)
def spark_35(session: nox.Session) -> None:
    """Micro-batches driven by the program, on Spark 3.5."""
    make(session, "test-spark-35")


@nox.session(python=False)
def oldest(session: nox.Session) -> None:
    """The tests that need no Spark, with the oldest versions of the dependencies."""
    make(session, "test-oldest")


@nox.session(python=False)
def pythons(session: nox.Session) -> None:
    """Import, batch and stream with every Python that this machine has."""
    make(session, "test-pythons")


@nox.session(python=False)
def interop(session: nox.Session) -> None:
    """Real SDKs, KCL workers, the KPL and kclpy."""
    make(session, "test-interop")


@nox.session(python=False)
def lakehouse(session: nox.Session) -> None:
    """Delta Lake and Iceberg."""
    make(session, "test-lakehouse")


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and the sdist of each distribution into dist/; the bytes depend on the commit alone."""
    session.install("hatchling>=1.25")
    at = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)
    for name, folder in DISTRIBUTIONS.items():
        target = ROOT / "dist" / name
        shutil.rmtree(target, ignore_errors=True)
        session.chdir(folder)
        session.run(
            "python",
            "-m",
            "hatchling",
            "build",
            "-d",
            str(target),
            env={"SOURCE_DATE_EPOCH": str(at).strip()},
        )
    session.chdir(ROOT)


@nox.session
def sbom(session: nox.Session) -> None:
    """Write CycloneDX documents of what each distribution brings into dist/sbom."""
    session.install("cyclonedx-bom>=7")
    target = ROOT / "dist" / "sbom"
    target.mkdir(parents=True, exist_ok=True)
    for name, folder in DISTRIBUTIONS.items():
        environment = Path(session.create_tmp()) / name
        session.run("python", "-m", "venv", "--clear", str(environment))
        python = str(environment / "bin" / "python")
        wanted = [str(ROOT / "local"), f"{ROOT}[{EXTRAS}]"] if name == "penstock" else [f"{folder}[replay]"]
        session.run(python, "-m", "pip", "install", "--quiet", *wanted, external=True)
        session.run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools", external=True)
        session.run(
            "cyclonedx-py",
            "environment",
            "--pyproject",
            str(folder / "pyproject.toml"),
            "--output-reproducible",
            "--output-file",
            str(target / f"{name}.cdx.json"),
            python,
        )
