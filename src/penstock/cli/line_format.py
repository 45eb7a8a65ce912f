r"""The output format of `tail -f`: text with fields in it, in the words of kcat.

`%s` data, `%S` its length, `%k` partition key, `%K` its length, `%p` shard, `%o` sequence number, `%t` stream, `%T` arrival
in milliseconds, `%%` a percent sign; `\n`, `\r`, `\t`, `\\` and `\x1f` as in C. No line end is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.consumer import Record

_PART: Final = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_FIELDS: Final[Mapping[str, Callable[[Record], bytes]]] = {
    "s": lambda record: record.data,
    "S": lambda record: b"%d" % len(record.data),
    "k": lambda record: (record.partition_key or "").encode(),
    "K": lambda record: b"%d" % len((record.partition_key or "").encode()),
    "p": lambda record: record.shard_id.encode(),
    "o": lambda record: record.sequence_number.encode(),
    "t": lambda record: record.stream.encode(),
    "T": lambda record: b"%d" % round(record.approximate_arrival_timestamp.timestamp() * 1000),
}


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A format that was read.

    Args:
        parts: Literal bytes, and the letters of fields, in order.
    """

    parts: tuple[bytes | str, ...]

    def fields(self, record: Record) -> list[tuple[bytes, bool]]:
        """Return the parts of a record's output, each with whether it is the record's own and may hold anything."""
        return [
            (part, False) if isinstance(part, bytes) else (_FIELDS[part](record), True) for part in self.parts
        ]


def parse_format(text: str) -> LineFormat:
    """Read a format as the user wrote it.

    Raises:
        OptionError: It has an unknown field or escape.
    """
    parts: list[bytes | str] = []
    for match in _PART.finditer(text):
        field, escape = match["field"], match["escape"]
        if match["text"] is not None:
            parts.append(match["text"].encode())
        elif field == "%":
            parts.append(b"%")
        elif field is not None and field in _FIELDS:
            parts.append(field)
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            parts.append(bytes([int(escape[1:], 16)]))
        else:
            known = " ".join(f"%{name}" for name in _FIELDS)
            raise OptionError(f"--format {text!r}: {match[0]!r} is none of {known} %% \\n \\r \\t \\\\ \\x1f")
    return LineFormat(tuple(parts))
