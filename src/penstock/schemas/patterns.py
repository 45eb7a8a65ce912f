"""Regular expressions of a JSON Schema, matched in a time that is bounded by the lengths of pattern and text.

Python's `re` tries one way after the other. With repeats in repeats (`(a+)+$`) the ways double with each character, and no other
thread of the process runs meanwhile. Here such a pattern becomes a set of states that is moved along the text once.

Source:
    Ken Thompson, "Regular Expression Search Algorithm", 1968.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # typeshed has only their old names
from typing import Any, Final, TypeAlias

Search: TypeAlias = Callable[[str], bool]

_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_CHARACTERS: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_PLACES: Final = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT)
_SHORT_ROUNDS_MAX: Final = 10
"""A repeat of a variable number of rounds is long if it may have more rounds than this."""
_LONG_REPEATS_MAX: Final = 2
"""If more long repeats follow each other, the time of `re` grows with more than the third power of a text's length."""
_STATE_COUNT_MAX: Final = 10_000


class _NotSupportedError(Exception):
    """A set of states cannot match the pattern, which has a reference to a group, or would need too many states."""


@functools.lru_cache(maxsize=256)
def compile_search(pattern: str) -> Search:
    """Compile a pattern; the returned function returns whether a text has a match.

    Raises:
        re.error: The pattern is not a regular expression.
    """
    parsed = _parser.parse(pattern)
    if _is_costly(parsed):
        try:
            return _States(parsed).search
        except _NotSupportedError:
            pass  # only `re` can match it, in a time without a bound
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


def _is_costly(parsed: Any) -> bool:
    return _count_long_repeats(parsed, is_inside_repeat=False) > _LONG_REPEATS_MAX


def _count_long_repeats(items: Iterable[Any], *, is_inside_repeat: bool) -> int:
    """Count the long repeats; a repeat or choice inside another repeat counts as too many by itself.

    `re` tries every combination of the repeats' lengths, so it is used only for patterns with few of them.
    """
    found = 0
    for code, argument in items:
        if code in _REPEATS:
            low, high, body = argument
            is_variable = low != high and high > 1
            found += int(is_variable and high > _SHORT_ROUNDS_MAX)
            if is_inside_repeat and is_variable:
                return _LONG_REPEATS_MAX + 1
            found += _count_long_repeats(body, is_inside_repeat=is_inside_repeat or high > 1)
        elif code is _constants.BRANCH:
            if is_inside_repeat:
                return _LONG_REPEATS_MAX + 1
            found += max(_count_long_repeats(branch, is_inside_repeat=False) for branch in argument[1])
        elif code is _constants.SUBPATTERN:
            found += _count_long_repeats(argument[3], is_inside_repeat=is_inside_repeat)
        elif code in (_constants.ASSERT, _constants.ASSERT_NOT):
            found += _count_long_repeats(argument[1], is_inside_repeat=is_inside_repeat)
    return found


class _States:
    """A pattern as states. Each state has a test, of a character or of a place, and the states that follow it.

    States are added from the pattern's end to its beginning. A method that adds states gets `end`, the state that follows them,
    and returns the first of the new states.

    Raises:
        _NotSupportedError: States cannot do what the pattern needs.
    """

    def __init__(self, parsed: Any) -> None:
        self._character_tests: list[Callable[[str], Any] | None] = []
        self._place_tests: list[Callable[[str, int], Any] | None] = []
        self._next_states: list[tuple[int, ...]] = []
        self._end = self._add()
        self._start = self._add_sequence(parsed, self._end, parsed.state.flags)

    def search(self, text: str) -> bool:
        """Return whether a text has a match."""
        states: set[int] = set()
        for at in range(len(text) + 1):
            reached = self._reach((*states, self._start), text, at)
            if self._end in reached:
                return True
            if at == len(text):
                return False
            character = text[at]
            states = set()
            for state in reached:
                test = self._character_tests[state]
                if test is not None and test(character):
                    states.update(self._next_states[state])
        raise AssertionError("a text ends")

    def _reach(self, states: Sequence[int], text: str, at: int) -> set[int]:
        """Return these states, and all states that they lead to without consuming a character."""
        found: set[int] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in found:
                continue
            found.add(state)
            place = self._place_tests[state]
            if self._character_tests[state] is None and (place is None or place(text, at)):
                left.extend(self._next_states[state])
        return found

    def _add(
        self,
        next_states: tuple[int, ...] = (),
        *,
        character: Callable[[str], Any] | None = None,
        place: Callable[[str, int], Any] | None = None,
    ) -> int:
        if len(self._next_states) >= _STATE_COUNT_MAX:
            raise _NotSupportedError
        self._next_states.append(next_states)
        self._character_tests.append(character)
        self._place_tests.append(place)
        return len(self._next_states) - 1

    def _add_sequence(self, items: Sequence[Any], end: int, flags: int) -> int:
        """Add the states of consecutive items, the last of which leads to `end`; return the first state."""
        for item in reversed(list(items)):
            end = self._add_item(item, end, flags)
        return end

    def _add_item(self, item: Any, end: int, flags: int) -> int:
        code, argument = item
        if code in _CHARACTERS:
            return self._add((end,), character=_compile_item(item, flags).match)
        if code in _PLACES:
            if code is not _constants.AT and _is_costly(argument[1]):
                raise _NotSupportedError
            return self._add((end,), place=_compile_item(item, flags).match)
        if code in _REPEATS:
            return self._add_repeat(argument, end, flags)
        if code is _constants.SUBPATTERN:
            _, added, dropped, body = argument
            return self._add_sequence(body, end, (flags | added) & ~dropped)
        if code is _constants.BRANCH:
            return self._add(tuple(self._add_sequence(branch, end, flags) for branch in argument[1]))
        raise _NotSupportedError

    def _add_repeat(self, argument: tuple[int, int, Sequence[Any]], end: int, flags: int) -> int:
        """Add `low` copies of a repeated part, then a loop, or `high - low` copies that may each go on to the end."""
        low, high, body = argument
        if high is _constants.MAXREPEAT:
            loop = self._add()
            self._next_states[loop] = (self._add_sequence(body, loop, flags), end)
            end = loop
        else:
            last = end
            for _ in range(high - low):
                end = self._add((self._add_sequence(body, end, flags), last))
        for _ in range(low):
            end = self._add_sequence(body, end, flags)
        return end


def _compile_item(item: Any, flags: int) -> re.Pattern[str]:
    state = _parser.State()
    state.flags = flags
    found: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, [item]), flags)
    return found
