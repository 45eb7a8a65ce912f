"""The form of each operation's request, and the ValidationException for a request of another form.

Source: the service model of Kinesis that botocore ships. It has every operation with the members of its request:
types, lengths, ranges, patterns, enumerations and which are required. The file is read as it is: importing
botocore's reader takes longer than starting the server. An operation or member that the installed botocore does
not know does not exist here.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Collection, Sized
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import botocore
import msgspec

from penstock_local.documents import Timestamp
from penstock_local.service_errors import serialization, validation

KINESIS: Final = "kinesis/2013-12-02"
_SHOWN_CHARS_MAX = 1024
_MOMENT_MAX_S = 253_402_300_799
"""The last second of the year 9999."""
Document = TypeVar("Document")


class ShapeName(msgspec.Struct, frozen=True):
    """A reference to a shape."""

    shape: str


class Shape(msgspec.Struct, frozen=True, eq=False):
    """A type of the model; `min` and `max` bound its length, its count of members or its value."""

    type: str
    min: int | float | None = None
    max: int | float | None = None
    pattern: str | None = None
    enum: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    members: dict[str, ShapeName] = {}
    member: ShapeName = ShapeName("")
    key: ShapeName = ShapeName("")
    value: ShapeName = ShapeName("")


_NO_MEMBERS = Shape("structure")


class _Operation(msgspec.Struct, frozen=True):
    input: ShapeName | None = None


class _Model(msgspec.Struct, frozen=True):
    operations: dict[str, _Operation]
    shapes: dict[str, Shape]


def read_model(service: str, kind: type[Document]) -> Document:
    """Return the part of botocore's service model that `kind` needs.

    Args:
        service: Its name and the version of its interface, as botocore's folders have them.
        kind: A `msgspec.Struct` with some of the model's members.
    """
    file = Path(botocore.__file__).with_name("data") / service / "service-2.json.gz"
    return msgspec.json.decode(gzip.decompress(file.read_bytes()), type=kind)


@cache
def _model() -> _Model:
    return read_model(KINESIS, _Model)


def operations() -> Collection[str]:
    """Return the names of all operations that the service has."""
    return _model().operations.keys()


def input_shape(operation: str) -> Shape:
    """Return the shape of an operation's requests."""
    input_name = _model().operations[operation].input
    return _NO_MEMBERS if input_name is None else shape(input_name.shape)


def shape(name: str) -> Shape:
    """Return a shape of the model."""
    return _model().shapes[name]


@cache
def _fields(structure: Shape) -> list[tuple[str, str, Shape, bool]]:
    """Return name, name in messages, shape and whether it is required, of each member of a structure."""
    return [
        (name, name[0].lower() + name[1:], shape(member.shape), name in structure.required)
        for name, member in structure.members.items()
    ]


def check_request(operation: str, document: Any, *, members_apart: Collection[str] = ()) -> dict[str, Any]:
    """Return the members of a request that its operation knows, converted to the types that the operations use.

    Args:
        operation: One of `operations`.
        members_apart: Required members that the document lacks because they are checked elsewhere.

    Raises:
        RequestRefused: `SerializationException` for a wrong type, `ValidationException` for the rest.
    """
    problems: list[str] = []
    found = _check_structure(input_shape(operation), document, "", problems, members_apart)
    refuse_if(problems)
    return found


def check(expected: Shape | str, value: Any, path: str, problems: list[str]) -> Any:
    """Return a value converted to the type that the operations use; add a sentence for each constraint that it violates.

    Args:
        expected: A shape, or the name of one of the model.
        value: The request's value; not null.
        path: The place of the value in the request.
        problems: Receives the sentences.

    Raises:
        RequestRefused: `SerializationException` for a wrong type.
    """
    if isinstance(expected, str):
        expected = shape(expected)
    return CHECKS[expected.type](expected, value, path, problems)


def check_count(expected: Shape | str, value: Sized, path: str, problems: list[str]) -> None:
    """Check the number of members of a list or map; the sentence about a violation leaves out the members."""
    if isinstance(expected, str):
        expected = shape(expected)
    _check_length(expected, value, "[...]", path, problems)


def violation(value: Any, path: str, constraint: str) -> str:
    """Return the service's sentence for a member that violates a constraint."""
    shown = "null" if value is None else f"'{str(value)[:_SHOWN_CHARS_MAX]}'"
    return f"Value {shown} at '{path}' failed to satisfy constraint: {constraint}"


def refuse_if(problems: list[str]) -> None:
    """Raise the ValidationException that lists all problems, if there are any."""
    if problems:
        plural = "error" if len(problems) == 1 else "errors"
        raise validation(f"{len(problems)} validation {plural} detected: {'; '.join(problems)}")


# -- one check per type -------------------------------------------------------------------------------------


def _type_error(path: str, expected: str, value: Any) -> Exception:
    return serialization(f"{path} must be {expected}, not {type(value).__name__}")


def _check_length(expected: Shape, value: Sized, shown: Any, path: str, problems: list[str]) -> None:
    if expected.min is not None and len(value) < expected.min:
        problems.append(
            violation(shown, path, f"Member must have length greater than or equal to {expected.min}")
        )
    if expected.max is not None and len(value) > expected.max:
        problems.append(
            violation(shown, path, f"Member must have length less than or equal to {expected.max}")
        )


def _check_string(expected: Shape, value: Any, path: str, problems: list[str]) -> str:
    if not isinstance(value, str):
        raise _type_error(path, "a string", value)
    _check_length(expected, value, value, path, problems)
    # a value that is too long is not matched: some of the model's patterns take long for it
    fits = expected.max is None or len(value) <= expected.max
    if expected.pattern is not None and fits and not re.fullmatch(expected.pattern, value, re.ASCII):
        problems.append(
            violation(value, path, f"Member must satisfy regular expression pattern: {expected.pattern}")
        )
    if expected.enum and value not in expected.enum:
        problems.append(
            violation(value, path, f"Member must satisfy enum value set: [{', '.join(expected.enum)}]")
        )
    return value


def _check_integer(expected: Shape, value: Any, path: str, problems: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _type_error(path, "an integer", value)
    if expected.min is not None and value < expected.min:
        problems.append(
            violation(value, path, f"Member must have value greater than or equal to {expected.min}")
        )
    if expected.max is not None and value > expected.max:
        problems.append(
            violation(value, path, f"Member must have value less than or equal to {expected.max}")
        )
    return value


def _check_boolean(expected: Shape, value: Any, path: str, problems: list[str]) -> bool:  # noqa: ARG001
    if not isinstance(value, bool):
        raise _type_error(path, "a boolean", value)
    return value


def _check_timestamp(expected: Shape, value: Any, path: str, problems: list[str]) -> int:  # noqa: ARG001
    """Return a moment in milliseconds since the epoch. JSON has it in seconds, CBOR as a tagged number.

    Seconds are rounded up, which keeps "at or after" exact: records carry whole milliseconds.
    """
    if isinstance(value, Timestamp):
        if abs(value.ms) > _MOMENT_MAX_S * 1000:
            raise _type_error(path, "a time before the year 10000", value)
        return value.ms
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOMENT_MAX_S:
        raise _type_error(path, "a number of seconds", value)
    # microseconds first: the product of a float and 1000 may fall just below a whole millisecond
    return -(-round(value * 1_000_000) // 1000)


def _check_blob(expected: Shape, value: Any, path: str, problems: list[str]) -> str | bytes:  # noqa: ARG001
    """Return base64 text or bytes as they are; their length is checked when records are read."""
    if not isinstance(value, str | bytes):
        raise _type_error(path, "a blob", value)
    return value


def _check_list(expected: Shape, value: Any, path: str, problems: list[str]) -> list[Any]:
    if not isinstance(value, list):
        raise _type_error(path, "a list", value)
    check_count(expected, value, path, problems)
    member = shape(expected.member.shape)
    return [check(member, item, f"{path}.{i}.member", problems) for i, item in enumerate(value, 1)]


def _check_map(expected: Shape, value: Any, path: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _type_error(path, "a map", value)
    check_count(expected, value, path, problems)
    keys, values = shape(expected.key.shape), shape(expected.value.shape)
    return {
        check(keys, name, f"{path}.key", problems): check(values, item, f"{path}.{name}", problems)
        for name, item in value.items()
    }


def _check_structure(
    expected: Shape, value: Any, path: str, problems: list[str], members_apart: Collection[str] = ()
) -> dict[str, Any]:
    """Check presence and each member; null counts as absent, and unknown members are ignored, as the service does."""
    if not isinstance(value, dict):
        raise _type_error(path or "the body", "a structure", value)
    found = {}
    for name, shown, member, is_required in _fields(expected):
        item = value.get(name)
        if item is not None:
            where = f"{path}.{shown}" if path else shown
            found[name] = CHECKS[member.type](member, item, where, problems)
        elif is_required and name not in members_apart:
            where = f"{path}.{shown}" if path else shown
            problems.append(violation(None, where, "Member must not be null"))
    return found


CHECKS: dict[str, Callable[[Shape, Any, str, list[str]], Any]] = {
    "blob": _check_blob,
    "boolean": _check_boolean,
    "integer": _check_integer,
    "list": _check_list,
    "long": _check_integer,
    "map": _check_map,
    "string": _check_string,
    "structure": _check_structure,
    "timestamp": _check_timestamp,
}
