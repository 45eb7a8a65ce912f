"""A run of `model/check.py` over the modules of a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parents[1] / "model"


def checked(folder: Path, config: str) -> dict[str, object]:
    """Check one configuration; return its line of JSON."""
    command = [sys.executable, MODEL / "check.py", "--json", "--deadline", "500", "--folder", folder, "--config", config]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result
