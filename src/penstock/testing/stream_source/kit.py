"""The kit as a class of pytest, and as a function that returns a verdict for each promise."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.testing.stream_source.checks import CHECKS
from penstock.testing.stream_source.outcomes import NotStarted, NotTried, PromiseBroken
from penstock.testing.stream_source.promises import PROMISE_NAMES, PROMISES, Promise
from penstock.testing.stream_source.source_under_test import SourceUnderTest

__tracebackhide__ = True  # pytest shows the frames of the source, not those of the kit
_PACKAGE: Final = str(Path(__file__).parent)


class StreamSourceChecks:
    """A test for each promise: inherit it, in a class whose name begins with `Test`, and write the fixture `source`.

    The fixture returns a `SourceUnderTest` with a place of its own for each test.
    """

    known_broken: ClassVar[Mapping[str, str]] = {}
    """Names of promises that the source does not keep, with the reason: these tests have to fail."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make a test of each promise."""
        if "promise" in metafunc.fixturenames:
            metafunc.parametrize("promise", PROMISES, ids=[each.name for each in PROMISES])

    def test_promise(self, source: SourceUnderTest, promise: Promise) -> None:
        """Try one promise."""
        import pytest

        reason = self.known_broken.get(promise.name)
        try:
            _try_promise(source, promise)
        except NotTried as why:
            pytest.skip(str(why))
        except PromiseBroken as broken:
            if reason is None:
                raise
            pytest.xfail(f"{reason}\n{broken}")
        if reason is not None:
            pytest.fail(f"{promise.name!r} is held now: take it out of known_broken", pytrace=False)


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on a source: names of promises, in the order of trial.

    Attributes:
        held: Promises that were kept.
        broken: Promises that were not, with the whole text.
        not_tried: Promises that could not be tried, with the reason.
    """

    held: tuple[str, ...]
    broken: Mapping[str, str]
    not_tried: Mapping[str, str]


def check_stream_source(
    new_source: Callable[[], SourceUnderTest], promises: Collection[str] = PROMISE_NAMES
) -> Verdicts:
    """Try promises, each on a new source, and return the verdicts.

    Args:
        new_source: Returns the source with a place of its own.
        promises: Names of those to try; all by default.
    """
    held, broken, not_tried = [], {}, {}
    for promise in [each for each in PROMISES if each.name in promises]:
        try:
            _try_promise(new_source(), promise)
        except NotTried as why:
            not_tried[promise.name] = str(why)
        except PromiseBroken as why:
            broken[promise.name] = str(why)
        else:
            held.append(promise.name)
    return Verdicts(tuple(held), broken, not_tried)


def _try_promise(source: SourceUnderTest, promise: Promise) -> None:
    """Try one promise. An error of the source breaks this promise; if another promise is broken first, this one was not tried."""
    try:
        CHECKS[promise.name](source)
    except PromiseBroken as broken:
        if broken.promise != promise.name:
            raise NotTried(
                f"another promise is broken on the way, {broken.promise!r}: {broken.seen}"
            ) from broken
        raise
    except (NotStarted, NotTried, AssertionError):
        raise
    except Exception as error:
        raise PromiseBroken(promise, f"{_call_that_raised(error)}{type(error).__name__}: {error}") from error


def _call_that_raised(error: Exception) -> str:
    """Return the call of the source that raised, with a colon; empty if the source was not called."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    after = frames[ours[-1] + 1 :] if ours else []
    return f"{after[0].name}: " if after else ""
