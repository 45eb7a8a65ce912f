"""A parser for commands as people type them: options before, between and after the arguments, and a suggestion for a mistyped word."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.core.keyword_options import did_you_mean

_ENDS_OPTIONS: Final = "--"
_ARGUMENT_MARK: Final = "\0"
"""Marks a word after `--` until it is parsed. No typed word can contain it."""


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` for the command line; parsers of subcommands are of this class too."""

    _is_parsing_intermixed = False
    _accepts_all_words = False

    def __init__(self, **settings: Any) -> None:
        # An abbreviation would change its meaning as soon as another option began with the same letters.
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Parse, with options and arguments in any order."""
        words = sys.argv[1:] if args is None else list(args)
        if self._accepts_all_words:
            return super().parse_known_args([], namespace)
        if self._is_parsing_intermixed or self.subcommands is not None:
            return super().parse_known_args(words, namespace)
        self._refuse_unknown_options(words)
        # argparse parses in two calls: without a mark, the second would take the words after `--` as options.
        if _ENDS_OPTIONS in words:
            end = words.index(_ENDS_OPTIONS)
            words = words[: end + 1] + [f"{_ARGUMENT_MARK}{word}" for word in words[end + 1 :]]
        # The library's own way calls this method again, for the options alone and for the arguments alone.
        self._is_parsing_intermixed = True
        try:
            parsed, surplus = self.parse_known_intermixed_args(words, namespace)
            return parsed, [word.removeprefix(_ARGUMENT_MARK) for word in surplus]
        finally:
            self._is_parsing_intermixed = False

    def accept_all_words(self) -> None:
        """Accept every word and ignore it."""
        self._accepts_all_words = True

    @property
    def option_names(self) -> list[str]:
        """The long options that the help shows."""
        return [
            name
            for action in self._actions
            if action.help is not argparse.SUPPRESS
            for name in action.option_strings
            if name.startswith("--")
        ]

    def values_of(self, option: str) -> list[str] | None:
        """Return the values that an option accepts, empty if it accepts all; None if the word is not an option with a value."""
        for action in self._actions:
            if option in action.option_strings and action.nargs != 0:
                return [str(each) for each in action.choices or ()]
        return None

    @property
    def subcommands(self) -> dict[str, CommandParser] | None:
        """The parsers of the subcommands by name; None if there are none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
                return dict(action.choices)
        return None

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """End with an error if an option is unknown. Otherwise argparse might report a missing argument first."""
        known_words = [name for action in self._actions for name in action.option_strings]
        for word in words:
            if word == _ENDS_OPTIONS:
                return
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known_words:
                self.error(
                    f"unknown option {name}: {did_you_mean(name, known_words)}`{self.prog} --help` lists the options"
                )

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:  # help or version: argparse would ignore that they cannot be written
            file.write(message)
        else:
            super()._print_message(message, file)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.nargs != argparse.PARSER:  # its words are parsed by the subcommand
            arg_string = arg_string.removeprefix(_ARGUMENT_MARK)
            if not arg_string and arg_string != action.const:  # an option without a value gets its `const`
                raise argparse.ArgumentError(
                    action, "the value is empty; is a variable of the shell not set?"
                )
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known_words = [str(each) for each in action.choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else "value"  # noqa: SLF001
        message = f"unknown {what} {value}: {did_you_mean(str(value), known_words)}known are {', '.join(known_words)}"
        raise argparse.ArgumentError(None if what == "command" else action, message)
