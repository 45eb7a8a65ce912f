r"""The output format of `tail -f`: a text with fields, which have kcat's letters.

`%s` data, `%S` its length, `%k` partition key, `%K` its length, `%p` shard, `%o` sequence number, `%t` stream, `%T` arrival
in milliseconds, `%%` a percent sign; `\n`, `\r`, `\t`, `\\` and `\x1f` as in C. No line end is added. A record of a queue has no shard;
its `%o` is the record id, and its `%t` the queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import OptionError

_PART: Final = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_Fields = Mapping[str, Callable[[Any], bytes]]
_COMMON_FIELDS: Final[_Fields] = {
    "s": lambda record: record.data,
    "S": lambda record: b"%d" % len(record.data),
    "k": lambda record: (record.partition_key or "").encode(),
    "K": lambda record: b"%d" % len((record.partition_key or "").encode()),
    "T": lambda record: b"%d" % round(record.approximate_arrival_timestamp.timestamp() * 1000),
}
STREAM_FIELDS: Final[_Fields] = {
    **_COMMON_FIELDS,
    "p": lambda record: record.shard_id.encode(),
    "o": lambda record: record.sequence_number.encode(),
    "t": lambda record: record.stream.encode(),
}
"""Fields of a `penstock.consumer.Record`."""
QUEUE_FIELDS: Final[_Fields] = {
    **_COMMON_FIELDS,
    "o": lambda record: record.record_id.encode(),
    "t": lambda record: record.queue.encode(),
}
"""Fields of a `penstock.queues.QueueRecord`."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A parsed format.

    Args:
        parts: Literal bytes, and the letters of fields, in order.
        record_fields: The fields by letter.
    """

    parts: tuple[bytes | str, ...]
    record_fields: _Fields

    def fields(self, record: Any) -> list[tuple[bytes, bool]]:
        """Return the parts of a record's output; the second value is True for a field of the record, which may hold any bytes."""
        return [
            (part, False) if isinstance(part, bytes) else (self.record_fields[part](record), True)
            for part in self.parts
        ]


def parse_format(text: str, fields: _Fields = STREAM_FIELDS) -> LineFormat:
    """Parse the text of `--format`.

    Args:
        fields: The fields of the records.

    Raises:
        OptionError: The format has an unknown field or escape.
    """
    parts: list[bytes | str] = []
    for match in _PART.finditer(text):
        field, escape = match["field"], match["escape"]
        if match["text"] is not None:
            parts.append(match["text"].encode("utf-8", "surrogateescape"))
        elif field == "%":
            parts.append(b"%")
        elif field is not None and field in fields:
            parts.append(field)
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            parts.append(bytes([int(escape[1:], 16)]))
        else:
            known = " ".join(f"%{name}" for name in fields)
            raise OptionError(f"--format {text!r}: {match[0]!r} is none of {known} %% \\n \\r \\t \\\\ \\x1f")
    return LineFormat(tuple(parts), fields)
