"""The lines that run a file of deliveries on a cluster, as docs/cluster.md has them."""

from __future__ import annotations

import shlex
from typing import Final

_PROGRAM: Final = '\'import runpy; runpy.run_module("penstock", run_name="__main__")\''


def submit_lines(file: str, arguments: tuple[str, ...], master: str | None) -> str:
    """Return the lines of a shell.

    Args:
        file: The file of deliveries.
        arguments: Further arguments of the command.
        master: Spark's master; None leaves it to the cluster's configuration.
    """
    name = file.rpartition("/")[2]
    words = ["deliver", "-f", name, *arguments]
    options = ["--archives", "environment.tar.gz#environment", "--files", file]
    if master is not None:
        options = ["--master", master, *options]
    return "\n".join(
        (
            "python3 -m venv environment && . environment/bin/activate",
            "pip install penstock 'pyarrow>=18' 'pandas>=2.2,<3' pyyaml venv-pack",
            "venv-pack -o environment.tar.gz",
            f"echo {_PROGRAM} > deliver.py",
            f"PYSPARK_PYTHON=./environment/bin/python spark-submit {shlex.join(options)} \\",
            f"  deliver.py {shlex.join(words)}",
        )
    )
