"""`penstock completion`: print the script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.cli.command_parser import CommandParser

DESCRIPTION = "Print the lines that let bash, zsh or fish complete commands and options."
_WORDS: Final = "PENSTOCK_COMPLETE"
"""Environment variable of a shell that requests completions: the words after `penstock`, one a line. The last is completed."""
# In a file of zsh's fpath the lines are the body of a function, which zsh calls at the first Tab: they must answer that Tab.
_SCRIPTS: Final = {
    "bash": r"""_penstock() {
    local IFS=$'\n'
    COMPREPLY=($(PENSTOCK_COMPLETE="${COMP_WORDS[*]:1:COMP_CWORD}" penstock completion bash))
}
complete -o default -F _penstock penstock
""",
    "zsh": r"""#compdef penstock
_penstock() {
    local found="$(PENSTOCK_COMPLETE="${(pj:\n:)words[2,CURRENT]}" penstock completion zsh)"
    if [[ -n $found ]]; then
        compadd -- "${(@f)found}"
    else
        _files
    fi
}
if [[ $funcstack[1] == _penstock ]]; then
    _penstock "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _penstock penstock
fi
""",
    "fish": r"""function __penstock_complete
    set -lx PENSTOCK_COMPLETE (begin
        string join \n -- (commandline -opc)[2..]
        printf %s (commandline -ct)
    end | string collect --no-trim-newlines --allow-empty)
    set -l found (penstock completion fish | string match -v '')
    if set -q found[1]
        string join \n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c penstock -f -a '(__penstock_complete)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=tuple(_SCRIPTS),
        help='for instance: eval "$(penstock completion bash)"; in fish: penstock completion fish | source',
    )


def run(args: argparse.Namespace) -> int:
    """Print the script, or if a shell requests completions, the words that fit; return the exit status."""
    from penstock.cli.main import build_parser

    typed_words = os.environ.get(_WORDS)
    if typed_words is None:
        print(_SCRIPTS[args.shell], end="")
    else:
        print("\n".join(completions(build_parser()[0], typed_words.split("\n"))))
    return 0


def completions(parser: CommandParser, words: list[str]) -> list[str]:
    """Return the completions of the last word.

    Args:
        parser: The parser of the command line.
        words: Those after the program's name; the last one may be empty.
    """
    *earlier_words, last_word = words
    for word in earlier_words:
        parser = (parser.subcommands or {}).get(word, parser)
    return [
        word
        for word in _possible_words(parser, earlier_words[-1] if earlier_words else "", last_word)
        if word.startswith(last_word)
    ]


def _possible_words(parser: CommandParser, previous_word: str, last_word: str) -> list[str]:
    values = parser.values_of(previous_word)
    if values is not None:
        return values
    if last_word.startswith("-"):
        return parser.option_names
    return list(parser.subcommands or ())
