"""Where reading starts when nothing is checkpointed yet: one word, a moment, or JSON shard by shard.

Accepted spellings: `LATEST`, `TRIM_HORIZON`, `EARLIEST` (the same), `AT_TIMESTAMP 2026-01-31T12:00:00Z` (also
with `:` or `=`), an ISO timestamp alone, `{"at_timestamp": "..."}`, and
`{"shardId-000000000000": "49590338271490256608559692538361571095921575989136588898", "*": "TRIM_HORIZON"}` where
each value is any of the spellings, a sequence number, a checkpoint as `penstock leases --json` shows it (`4959...8898.3`,
`SHARD_END`), or the `{"iteratorType": ..., "iteratorPosition": ...}` of
another connector's saved position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Final

from msgspec import Struct, field

from penstock.core.keyword_options import json_object
from penstock.core.moments import parse_moment
from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
    parse_position,
)
from penstock.errors import PositionError

_MOMENT: Final = re.compile(r"^AT_TIMESTAMP\s*[:=\s]\s*(?P<moment>.+)$", re.IGNORECASE | re.DOTALL)
_SHOWN_CHECKPOINT: Final = re.compile(r"[0-9]+(\.[0-9]{1,18})?|SHARD_END|LATEST:[0-9]{1,18}")
_SUB_DIGITS_MAX: Final = 19
_CLOCKS_APART_MS: Final = 30_000  # a position that is refused is tried again for longer than that
_FORMS: Final = (
    "expected LATEST, TRIM_HORIZON, EARLIEST, AT_TIMESTAMP <ISO 8601 moment>, or JSON that names a position for "
    'each shard ({"shardId-...": "<sequence number>", "*": "TRIM_HORIZON"})'
)


class StartingPosition(Struct, frozen=True):
    """Where each shard starts.

    Args:
        default: Position of the shards that are not named.
        by_shard: Position of each named shard.
    """

    default: Position = LATEST
    by_shard: Mapping[str, Position] = field(default_factory=dict)

    def position_of(self, shard_id: str) -> Position:
        """Return the position for one shard."""
        return self.by_shard.get(shard_id, self.default)


def parse_starting(
    text: str, option: str = "startingPosition", zone: tzinfo | None = None
) -> StartingPosition:
    """Read a starting (or ending) position as a user wrote it.

    Args:
        option: Its name, for messages.
        zone: The time zone of moments without one; None refuses them.

    Raises:
        PositionError: None of the accepted forms; the message lists them.
    """
    text = text.strip()
    if not text.startswith("{"):
        return StartingPosition(default=_parse_word(text, option, zone))
    try:
        document = json.loads(text, object_pairs_hook=json_object)
    except (ValueError, RecursionError) as error:
        raise PositionError(
            f"option {option}: {text[:80]!r} begins like JSON and cannot be read as it ({error}); {_FORMS}"
        ) from error
    lowered = {key.lower(): value for key, value in document.items()}
    if "at_timestamp" in lowered:
        if lowered.get("format") is not None:
            raise PositionError(
                f"option {option}: a timestamp pattern ({lowered['format']!r:.60}) is not supported; write the moment as "
                "ISO 8601, for instance 2026-01-31T12:00:00Z"
            )
        return StartingPosition(default=_parse_moment(lowered["at_timestamp"], option, zone))
    positions = {
        shard: _parse_entry(value, option, zone)
        for shard, value in document.items()
        if shard not in ("*", "metadata")  # another connector's saved position has metadata beside the shards
    }
    default = _parse_entry(document["*"], option, zone) if "*" in document else TRIM_HORIZON
    if default.is_in_shard:
        raise PositionError(
            f'option {option}: "*" stands for every shard that is not named, and {document["*"]!r} is a place in one; '
            "use LATEST, TRIM_HORIZON or AT_TIMESTAMP <ISO 8601 moment>"
        )
    return StartingPosition(default=default, by_shard=positions)


def _parse_entry(value: Any, option: str, zone: tzinfo | None) -> Position:
    """Parse the position of one shard in the JSON form."""
    if isinstance(value, str):
        is_shown = _SHOWN_CHECKPOINT.fullmatch(value) is not None
        return parse_position(value) if is_shown else _parse_word(value, option, zone)
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_whole(value[1]):
        return at_record(value[0], value[1])
    if isinstance(value, Mapping) and "iteratorType" in value:
        return _parse_saved_position(value, option, zone)
    raise PositionError(f"option {option}: {value!r:.200} is not a position; {_FORMS}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_saved_position(value: Mapping[str, Any], option: str, zone: tzinfo | None) -> Position:
    """Parse a shard's position that another connector has saved."""
    kind = str(value["iteratorType"]).upper()
    place = str(value.get("iteratorPosition", ""))
    if kind == "SHARD_END":
        return SHARD_END
    if kind == "AFTER_SEQUENCE_NUMBER":
        given = value.get("subSequenceNumber")
        is_text = (
            isinstance(given, str) and len(given) < _SUB_DIGITS_MAX and given.removeprefix("-").isdecimal()
        )
        sub = 0 if given is None else int(given) if is_text else given
        if not _is_whole(sub):
            raise PositionError(f"option {option}: subSequenceNumber {sub!r:.100} is not a whole number")
        return at_record(place, max(sub, 0))
    if kind == "AT_TIMESTAMP":
        return _parse_moment(place, option, zone)
    return _parse_word(kind, option, zone)


def _parse_word(text: str, option: str, zone: tzinfo | None) -> Position:
    word = text.upper()
    if word in ("TRIM_HORIZON", "EARLIEST"):
        return TRIM_HORIZON
    if word == "LATEST":
        return LATEST
    match = _MOMENT.match(text)
    if match:
        return _parse_moment(match["moment"], option, zone)
    if text[:4].isdigit() and "-" in text:
        return _parse_moment(text, option, zone)
    raise PositionError(f"option {option}: {text[:80]!r} is not a position; {_FORMS}")


def _parse_moment(value: Any, option: str, zone: tzinfo | None) -> Position:
    return at_timestamp(parse_moment(value, f"option {option}", zone))


def check_not_in_future(starting: StartingPosition, now_ms: int, option_text: str) -> None:
    """Refuse a position with a future moment: the service would refuse every request for it.

    Args:
        now_ms: By this machine's clock.
        option_text: The user's text, for the message.

    Raises:
        PositionError: A moment is in the future by more than clocks may be apart.
    """
    positions = (starting.default, *starting.by_shard.values())
    moments_ms = [each.timestamp_ms for each in positions if each.timestamp_ms is not None]
    if max(moments_ms, default=0) > now_ms + _CLOCKS_APART_MS:
        raise PositionError(
            f"{option_text}: this moment is in the future; for records that arrive from now on, start at LATEST"
        )


def pin_latest(position: Position, now_ms: int) -> Position:
    """Add the present moment to a LATEST that has none; return any other position unchanged.

    The sentinel stays LATEST, so that a Java KCL worker finds a known word in the lease table; the moment is
    stored beside it.
    """
    if position.sentinel is Sentinel.LATEST and position.timestamp_ms is None:
        return Position(sentinel=Sentinel.LATEST, timestamp_ms=now_ms)
    return position


def with_moment(position: Position, configured: Position) -> Position:
    """Return a position with its moment: an AT_TIMESTAMP without one gets the moment that the user configured.

    The KCL keeps the moment in its configuration, not in the lease table.

    Args:
        position: The position in a lease.
        configured: The position that the user has set for this shard.

    Returns:
        The configured moment; TRIM_HORIZON if the user configured none, so that nothing is left out. Every other
        position as it is.
    """
    if position.sentinel is not Sentinel.AT_TIMESTAMP or position.timestamp_ms is not None:
        return position
    return configured if configured.sentinel is Sentinel.AT_TIMESTAMP else TRIM_HORIZON
