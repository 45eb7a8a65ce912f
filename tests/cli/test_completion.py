"""What a shell is offered."""

import os
import subprocess
import sys

import pytest

from penstock.cli.completion_command import completions
from penstock.cli.main import build_parser


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ta"], ["tail"]),
        (["-v", "str"], ["streams"]),
        (["streams", "de"], ["describe", "delete"]),
        (["tail", "orders", "--un"], ["--until-end"]),
        (["streams", "create", "--on"], ["--on-demand"]),
        (["consume", "orders", "--policy", "by"], ["by_throughput", "by_zone"]),
        (["put", "orders", "--key", "--"], []),
        (["tail", "orders", "x"], []),
    ],
)
def test_the_last_word_is_completed(words, found):
    assert completions(build_parser()[0], words) == found


def test_bash_completes_with_what_is_printed(tmp_path):
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m penstock "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(penstock completion bash)"; COMP_WORDS=(penstock streams de); COMP_CWORD=2; _penstock; '
        'echo "${COMPREPLY[*]}"'
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["describe", "delete"]
