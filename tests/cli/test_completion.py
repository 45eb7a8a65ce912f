"""The completions for a shell."""

import os
import shutil
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
        (["tail", "orders", "--un"], ["--until-end", "--until"]),
        (["streams", "create", "--on"], ["--on-demand"]),
        (["consume", "orders", "--policy", "by"], ["by_throughput", "by_zone"]),
        (["put", "orders", "--key", "--"], []),
        (["tail", "orders", "x"], []),
    ],
)
def test_the_last_word_is_completed(words, found):
    assert completions(build_parser()[0], words) == found


SHELLS = {
    "bash": 'eval "$(penstock completion bash)"; COMP_WORDS=(penstock {}); COMP_CWORD=2; _penstock; echo "${{COMPREPLY[*]}}"',
    "zsh": 'eval "$(penstock completion zsh)"; words=(penstock {}); CURRENT=3; compadd() {{ print -r -- "$@[2,-1]" }}; _penstock',
    "zsh, from its fpath": "penstock completion zsh > $HOME/_penstock; fpath=($HOME $fpath); autoload -Uz _penstock; "
    'words=(penstock {}); CURRENT=3; compadd() {{ print -r -- "$@[2,-1]" }}; _penstock',
    "fish": "penstock completion fish | source; complete -C 'penstock {}'",
}


@pytest.mark.parametrize("way", SHELLS)
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("streams de", ["delete", "describe"]),
        ("streams ''", sorted(build_parser()[0].subcommands["streams"].subcommands)),
    ],
)
def test_a_shell_completes_with_what_is_printed(way, typed, found, tmp_path):
    shell = way.partition(",")[0]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m penstock "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    script = SHELLS[way].format(typed if shell != "fish" else typed.removesuffix("''"))
    without_settings = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    done = subprocess.run(
        [shell, without_settings, "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert sorted(done.stdout.split()) == found
