"""Text of objects from outside, such as exceptions of user code: making it never raises, and it can always be written."""

from __future__ import annotations

from typing import Final

from penstock.errors import AccessDenied, ServiceError

CHARACTERS_MAX: Final = 2_000


def text_of(value: object, characters_max: int = CHARACTERS_MAX) -> str:
    """Return the text of any object, even if its `__str__` raises.

    Args:
        value: Anything. Its `__str__` may raise, or return no text, or one that is not valid Unicode.
        characters_max: Longer text is cut, and marked by three dots.

    Returns:
        Text that UTF-8 can encode: half a surrogate pair is spelled out by its code, as in a file name that is not UTF-8.
    """
    try:
        text = str.__str__(str(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything here, and the caller has to go on
        return f"(no text: {name_of(type(value))}.__str__ raised {name_of(type(error))})"
    if len(text) > characters_max:
        text = f"{text[:characters_max]}..."
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an exception, even if its `__str__` raises; of a group, also those of its first error."""
    text = text_of(error)
    described = f"{name_of(type(error))}: {text}" if text else name_of(type(error))
    if not issubclass(type(error), BaseExceptionGroup):  # `isinstance` may call code of the error
        return described
    while issubclass(type(error), BaseExceptionGroup):
        error = BaseExceptionGroup.exceptions.__get__(error)[0]
    return f"{described}; first: {describe_error(error)}"


def name_of(cls: type) -> str:
    """Return the name of a class, also if its metaclass hides it or it has half a surrogate pair."""
    return str.__str__(type.__dict__["__name__"].__get__(cls)).encode("utf-8", "backslashreplace").decode()


def error_and_remedy(error: ServiceError, action: str) -> str:
    """Return a service's error as the end of a sentence, after the advice to allow an action if it was denied."""
    allow = f": allow {action}" if isinstance(error, AccessDenied) else ""
    return f"{allow} ({error})"
