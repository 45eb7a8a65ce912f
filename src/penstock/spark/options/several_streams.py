"""The options of a read of several streams: `streamName=orders,returns`, or as many ARNs in `streamARN`.

Each stream gets the options of a read of it alone, so one parser decides about all. A comma makes a list: `orders,` is a list
of one, which keeps the form of several streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.keyword_options import json_object
from penstock.core.stream_identity import all_regions_of, region_of_arns
from penstock.errors import OptionError
from penstock.spark.options.spark_options import (
    OPTIONS,
    BatchOptions,
    SourceOptions,
    is_batch_read,
    parse_batch,
    parse_source,
)
from penstock.spark.options.table_properties import user_options

STREAMS_MAX: Final = 50
"""The driver runs a dozen threads for each stream of a query."""
_NAMES: Final = ("streamName", "streamARN")
_STARTS: Final = ("startingPosition", "endingPosition")
_KCL_ID: Final = re.compile(r"[0-9]+:[^:]+:[0-9]+")
_Options = TypeVar("_Options")


class SeveralOptions(Struct, frozen=True):
    """The options of a streaming query of several streams.

    Args:
        streams: The options for each stream. They differ in the stream and its starting position.
    """

    streams: tuple[SourceOptions, ...]

    @property
    def shared(self) -> SourceOptions:
        """The options that are the same for all streams; `stream` has all names, for messages."""
        return replace(self.streams[0], stream=",".join(each.stream for each in self.streams))


def names_several(given: Mapping[str, str]) -> bool:
    """Return whether the options of a read name a list of streams."""
    return any("," in text for text in _given_texts(user_options(given), _NAMES).values())


def parse_several_source(
    given: Mapping[str, str], session_zone: str | None = None
) -> tuple[SeveralOptions, tuple[str, ...]]:
    """Read the options of a streaming query of several streams; also return a sentence for each option without effect.

    Args:
        session_zone: The session's time zone, if the caller has the session.

    Raises:
        OptionError: Anything unknown, missing or out of range, or without a meaning for several streams.
    """
    streams, notes = _parse_each(given, partial(parse_source, session_zone=session_zone))
    shared = streams[0]
    if shared.application_is_default:
        raise OptionError(
            f"option applicationName is missing: the streams {', '.join(each.stream for each in streams)} of one query are one "
            "application, with one lease table; name it"
        )
    texts = _given_texts(user_options(given), ("registeredConsumerId", "maxLeases"))
    consumer = texts.get("registeredConsumerId")
    if consumer is not None and consumer.strip().startswith("arn:"):
        raise OptionError(
            f"option registeredConsumerId={consumer}: an ARN is one of a consumer of one stream, and several are read; give the name, "
            "under which a consumer of each stream is used"
        )
    if "maxLeases" in texts:
        raise OptionError(
            f"option maxLeases={texts['maxLeases']}: the streams of a query share their shards with other workers each by itself, so there "
            "is no limit over all of them; leave it out, or give each stream a query of its own"
        )
    if shared.partitions_max is not None and shared.partitions_max < len(streams):
        raise OptionError(
            f"option maxPartitions={shared.partitions_max}: a task reads shards of one stream, so {len(streams)} streams need "
            f"maxPartitions={len(streams)} or more"
        )
    return SeveralOptions(streams), notes


def parse_several_batch(given: Mapping[str, str]) -> tuple[tuple[BatchOptions, ...], tuple[str, ...]]:
    """Read the options of a batch read of several streams; return those of each.

    Raises:
        OptionError: As in `parse_batch`.
    """
    return _parse_each(given, parse_batch)


def check_read(given: Mapping[str, str]) -> None:
    """Check the options of a read when Spark has not decided yet whether it is a streaming or a batch read.

    An option that only a streaming read of several streams needs, such as `applicationName`, may be missing.

    Raises:
        OptionError: As the two readers would raise it.
    """
    parse: Callable[[Mapping[str, str]], Any] = parse_batch if is_batch_read(given) else parse_source
    if names_several(given):
        _parse_each(given, parse)
    else:
        parse(given)


def _parse_each(
    given: Mapping[str, str], parse: Callable[[Mapping[str, str]], tuple[_Options, tuple[str, ...]]]
) -> tuple[tuple[_Options, ...], tuple[str, ...]]:
    """Parse the options once for each stream, with its own name and starting position.

    Returns:
        The result for each stream; and the notes of all, each once.
    """
    given = user_options(given)
    option, names = _stream_list(given)
    dropped = _name_by_spelling((*_NAMES, *_STARTS))
    rest = {key: text for key, text in given.items() if key.lower() not in dropped}
    region = region_of_arns(*names)
    if region is not None and not _given_texts(given, ("region",)):
        rest["region"] = region  # the one in an ARN holds for streams that are given by name, too
    positions = {
        start: split_starting(text, names, start) for start, text in _given_texts(given, _STARTS).items()
    }
    found, notes = [], dict[str, None]()
    for name in names:
        own = {start: texts[name] for start, texts in positions.items() if name in texts}
        options, own_notes = parse({**rest, option: name, **own})
        found.append(options)
        notes |= dict.fromkeys(own_notes)
    return tuple(found), tuple(notes)


def _stream_list(given: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the option that names the streams, and the streams: streamARN if both are given."""
    lists = {option: parse_names(option, text) for option, text in _given_texts(given, _NAMES).items()}
    names, arns = lists.get("streamName"), lists.get("streamARN")
    if arns is None:
        assert names is not None, "a read of several streams names them"
        _check_arns("streamName", names)
        return "streamName", names
    short = tuple(arn.rpartition("/")[2] for arn in arns)
    if names is not None and names != short:
        raise OptionError(
            f"options streamName={','.join(names)} and streamARN={','.join(arns)} name other streams, or the same ones in another "
            "order; keep one"
        )
    _check_arns("streamARN", arns)
    return "streamARN", arns


def _check_arns(option: str, arns: tuple[str, ...]) -> None:
    """Refuse streams of two regions, and two streams of one name.

    Args:
        arns: ARNs, or names.
    """
    regions = sorted(all_regions_of(*arns))
    if len(regions) > 1:
        raise OptionError(
            f"option {option} names streams of {', '.join(regions)}: the streams of one query are in one region, as its lease table is. "
            "Load each region's streams by themselves, with an applicationName of their own, and union the frames"
        )
    short = [arn.rpartition("/")[2] for arn in arns]
    twice = sorted({name for name in short if short.count(name) > 1})
    if twice:
        raise OptionError(
            f"option {option} names several streams {', '.join(twice)}: the column streamName could not tell them apart. Load each of "
            "them by itself, with an applicationName of its own"
        )


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Return the streams of a list: names or ARNs between commas. Spaces around them do not count.

    Raises:
        OptionError: A name is empty, or there twice, or there are too many.
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) == 2 and names[0] and not names[1]:
        del names[1]  # a list of one
    if not all(names):
        raise OptionError(
            f"option {option}={text}: a name between two commas is empty; write {','.join(filter(None, names)) or 'orders,returns'}"
        )
    ids = [name for name in names if _KCL_ID.fullmatch(name)]
    if ids:
        raise OptionError(
            f"option {option} names {', '.join(ids)}, an id of Java workers: a query takes names or ARNs, and makes the id from the stream's "
            "creation. If the Java workers use another epoch, a penstock.Consumer can share their leases"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"option {option}={text} names {', '.join(twice)} twice; name each stream once")
    if len(names) > STREAMS_MAX:
        raise OptionError(
            f"option {option} names {len(names)} streams, and a query reads at most {STREAMS_MAX}: start several queries"
        )
    return tuple(names)


def split_starting(text: str, names: Iterable[str], option: str) -> dict[str, str]:
    """Return the text of each stream's position: one text for all, or a stream's own from JSON by stream.

    Args:
        text: `TRIM_HORIZON`, or `{"orders": "TRIM_HORIZON", "returns": {"shardId-...": "..."}, "*": "LATEST"}`. A stream that the JSON
            does not name gets that of `*`; without it the default.
        names: The streams, as the option names them; the JSON may have the name in an ARN.
        option: For messages.

    Raises:
        OptionError: It names shards for all streams, or a stream that is not read.
    """
    names = tuple(names)
    if not text.strip().startswith("{"):
        return dict.fromkeys(names, text)
    try:
        document: Any = json.loads(text, object_pairs_hook=json_object)
    except (ValueError, RecursionError):
        return dict.fromkeys(names, text)  # the parser of one stream's position says why
    if "at_timestamp" in {key.lower() for key in document}:
        return dict.fromkeys(names, text)
    short = {name: name.rpartition("/")[2] for name in names}
    unknown = sorted(document.keys() - {*names, *short.values(), "*"})
    if unknown:
        raise OptionError(
            f"option {option} has a position for {', '.join(unknown)[:200]}, and the streams are {', '.join(names)}. Several streams are read, "
            f'whose shards have the same names: give positions by stream, {{"{short[names[0]]}": "TRIM_HORIZON", "*": "LATEST"}}; a stream\'s '
            'position may be JSON by shard, {"shardId-...": "<sequence number>"}'
        )
    texts = {}
    for name in names:
        value = document.get(name, document.get(short[name], document.get("*")))
        if value is not None:
            texts[name] = value if isinstance(value, str) else json.dumps(value)
    return texts


def _given_texts(given: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """Return the texts that the user gave for some options, by their main names, however the user spells them.

    Args:
        options: Names of the options.

    Raises:
        OptionError: An option is set twice.
    """
    spelt = _name_by_spelling(options)
    texts: dict[str, str] = {}
    for key, text in given.items():
        name = spelt.get(key.lower())
        if name in texts:
            raise OptionError(f"option {name} is set twice, once as {key}; keep one")
        if name is not None:
            texts[name] = text
    return texts


def _name_by_spelling(options: Iterable[str]) -> dict[str, str]:
    """Return the names of some options by each of their spellings, in lower case."""
    wanted = frozenset(options)
    return {
        key.lower(): option.name
        for option in OPTIONS
        if option.name in wanted
        for key, _ in option.spellings()
    }
