"""Text of objects from outside can always be made, and always be written as UTF-8."""

import json

import pytest

from penstock.core.safe_text import CHARACTERS_MAX, describe_error, text_of


class RaisesInStrError(Exception):
    def __str__(self):
        return self.response.text


class ReturnsNoneError(Exception):
    def __str__(self):
        return NotImplemented


class EndsTheProgramError(Exception):
    def __str__(self):
        raise SystemExit(3)


class RecursesError(Exception):
    def __str__(self):
        return str(self)


class Text(str):
    __slots__ = ()

    def __str__(self):
        raise ValueError

    def encode(self, *_):
        raise ValueError


class ReturnsOddTextError(Exception):
    def __str__(self):
        return Text("fine")


class Nameless(type):
    @property
    def __name__(cls):
        raise ValueError


class OfNamelessClassError(Exception, metaclass=Nameless):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RaisesInStrError(), "RaisesInStrError: (no text: RaisesInStrError.__str__ raised AttributeError)"),
        (ReturnsNoneError(), "ReturnsNoneError: (no text: ReturnsNoneError.__str__ raised TypeError)"),
        (
            EndsTheProgramError(),
            "EndsTheProgramError: (no text: EndsTheProgramError.__str__ raised SystemExit)",
        ),
        (RecursesError(), "RecursesError: (no text: RecursesError.__str__ raised RecursionError)"),
        (ReturnsOddTextError(), "ReturnsOddTextError: fine"),
        (OfNamelessClassError("odd"), "OfNamelessClassError: odd"),
        (ValueError(), "ValueError"),
        (OSError("no such file: caf\udce9.csv"), "OSError: no such file: caf\\udce9.csv"),
        (
            ExceptionGroup("two", [RaisesInStrError(), ValueError("b")]),
            "ExceptionGroup: two (2 sub-exceptions); first: RaisesInStrError: (no text: RaisesInStrError.__str__ raised AttributeError)",
        ),
        (
            ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("b"), KeyError("c")])]),
            "ExceptionGroup: outer (1 sub-exception); first: ValueError: b",
        ),
        (SystemExit(2), "SystemExit: 2"),
        (ValueError("x" * 20_000), f"ValueError: {'x' * CHARACTERS_MAX}..."),
    ],
)
def test_every_exception_has_a_text(error, text):
    found = describe_error(error)
    assert found == text
    assert json.loads(json.dumps(found)) == found
    assert found.encode("utf-8").decode("utf-8") == found


def test_a_text_that_raises_an_interrupt_interrupts():
    class Interrupts:
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupts())
