"""The control paths under `/_penstock/`: the state, the clock, the call log and scripted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from penstock_local import request_model
from penstock_local.about import ServerDescription
from penstock_local.calls import CallLog
from penstock_local.credentials import is_region
from penstock_local.documents import read_json
from penstock_local.errors import OptionError
from penstock_local.faults import Fault
from penstock_local.http import Request, Response
from penstock_local.operation_names import check_operation
from penstock_local.operations.call import Service
from penstock_local.replay.player import Player
from penstock_local.service_errors import RequestRefused
from penstock_local.virtual_clock import VirtualClock

PREFIX = "/_penstock/"
_JSON = "application/json"
_N = TypeVar("_N", int, float)


class Control:
    """Answers the control paths.

    Args:
        service: The parts that all calls share.
        clock: The server's clock.
        calls: The server's call log.
        about: Returns the description of the server.
        player: The replays of recordings; None if the server has none.
    """

    def __init__(
        self,
        service: Service,
        clock: VirtualClock,
        calls: CallLog,
        about: Callable[[], ServerDescription],
        player: Player | None = None,
    ) -> None:
        self._player = player
        self._service = service
        self._clock = clock
        self._calls = calls
        self._routes: dict[tuple[str, str], Callable[[dict[str, Any]], Any]] = {
            ("GET", "about"): lambda _: about(),
            ("GET", "clock"): lambda _: self._clock_state(),
            ("POST", "clock"): self._move_clock,
            ("GET", "faults"): lambda _: self._service.faults.describe(),
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("POST", "expire"): self._expire,
            ("GET", "calls"): lambda _: self._calls.describe(),
            ("DELETE", "calls"): self._reset_calls,
            ("GET", "state"): lambda _: self._state(),
            ("POST", "streams"): self._create_stream,
            ("GET", "replay"): lambda _: self._require_player().state(),
            ("POST", "replay"): self.step_replay,
        }

    def answer(self, request: Request) -> Response:
        """Answer one request. A wrong request gets status 400 and a sentence."""
        path, _, query = request.target.partition("?")
        route = self._routes.get((request.method, path.removeprefix(PREFIX)))
        if route is None:
            known = ", ".join(f"{method} {PREFIX}{name}" for method, name in self._routes)
            return _reply({"error": f"no {request.method} {path[:200]}; there are {known}"}, 404)
        # a web page in a browser may send any other content type without a preflight request
        if request.method == "POST" and _media_type(request) != _JSON:
            return _reply({"error": f"POST {path} needs the header Content-Type: {_JSON}"}, 415)
        try:
            return _reply(route(_document(request.body, query)))
        except (OptionError, RequestRefused, KeyError, TypeError, ValueError, OverflowError) as error:
            return _reply({"error": _sentence(error)}, 400)

    def _clock_state(self) -> dict[str, Any]:
        return {"now_ms": self._clock.now_ms(), "time_factor": self._clock.factor}

    def _move_clock(self, document: dict[str, Any]) -> dict[str, Any]:
        now_ms = self._clock.advance(_number(float, "advance_s", document["advance_s"]))
        self._service.store.journal.clock_moved(now_ms)
        self._service.store.settle_all(now_ms)
        self._service.metrics.add_queue_levels(self._service.store.queues, now_ms)
        self._service.subscriptions.wake_all()
        self._service.polls.wake_all()
        return self._clock_state()

    def _require_player(self) -> Player:
        if self._player is None:
            raise OptionError("this server replays no recording")
        return self._player

    def step_replay(self, document: dict[str, Any]) -> dict[str, Any]:
        """Move the clock to the arrival of the next records; return the state of the replays."""
        player = self._require_player()
        self._move_clock({"advance_s": player.seconds_to(_number(int, "step", document.get("step", 1)))})
        return player.state()

    def _add_fault(self, document: dict[str, Any]) -> dict[str, Any]:
        fault = Fault.from_document(document)
        check_operation(fault.operation)
        return {"number": self._service.faults.add(fault)}

    def _clear_faults(self, document: dict[str, Any]) -> dict[str, Any]:
        number = document.get("number")
        self._service.faults.clear(None if number is None else _number(int, "number", number))
        return {}

    def _reset_calls(self, _: dict[str, Any]) -> dict[str, Any]:
        self._calls.reset()
        return {}

    def _expire(self, document: dict[str, Any]) -> dict[str, Any]:
        match document["what"]:
            case "iterators":
                self._service.tokens.iterator_generation += 1
            case "next_tokens":
                self._service.tokens.page_generation += 1
            case what:
                raise OptionError(f"what can expire is 'iterators' or 'next_tokens', not {what!r}")
        return {}

    def _create_stream(self, document: dict[str, Any]) -> dict[str, Any]:
        """Create a stream that is ACTIVE on return, past all account rates."""
        store = self._service.store
        name, shards = check_stream(document["name"], document.get("shards", 1))
        region = document.get("region", store.options.region)
        if not isinstance(region, str) or not is_region(region):
            raise OptionError(f"region must be the name of a region, for instance us-east-1, not {region!r}")
        stream = store.create_active(name, shards, self._clock.now_ms(), region)
        return {"arn": stream.arn}

    def _state(self) -> dict[str, Any]:
        store = self._service.store
        store.settle_all(self._clock.now_ms())
        return {
            "stored_bytes": store.stored_bytes,
            "memory_bytes_max": store.options.memory_bytes_max,
            "limits": self._service.quotas.enforced,
            "streams": {
                (
                    stream.name if stream.region == store.options.region else f"{stream.region}/{stream.name}"
                ): {
                    "status": stream.status,
                    "open_shards": len(stream.open_shards),
                    "shards": {
                        shard.id: {"records": len(shard), "stored_bytes": shard.stored_bytes}
                        for shard in stream.shards.values()
                    },
                    "queues": {
                        queue.name: {
                            "status": queue.settings.status,
                            **queue.counts(stream, self._clock.now_ms()),
                            "waiting": self._service.polls.count(queue),
                        }
                        for queue in store.queues.of_stream(stream, self._clock.now_ms())
                    },
                    "consumers": {
                        consumer.name: {
                            "status": consumer.status,
                            "subscribed": self._service.subscriptions.shards_of(stream, consumer),
                        }
                        for consumer in stream.consumers.values()
                    },
                }
                for stream in store.streams.values()
            },
        }


def check_stream(name: Any, shard_count: Any) -> tuple[str, int]:
    """Return a stream's name and number of shards if the service would accept them.

    Raises:
        OptionError: The service would refuse them.
    """
    if not isinstance(name, str):
        raise OptionError(f"the name of a stream is a text, not {type(name).__name__}")
    problems: list[str] = []
    request_model.check("StreamName", name, "streamName", problems)
    if problems:
        raise OptionError(f"{name[:200]!r} cannot be the name of a stream: {'; '.join(problems)}")
    if isinstance(shard_count, bool) or not isinstance(shard_count, int):
        raise OptionError(f"the number of shards of {name!r} is a whole number, not {shard_count!r}")
    if shard_count < 1:
        raise OptionError(f"stream {name!r} needs at least 1 shard, not {shard_count}")
    return name, shard_count


def _number(kind: type[_N], name: str, value: Any) -> _N:
    """Return a number of the body, or a text of the query, as a number of this kind."""
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{name} must be a number, not {value!r}") from error


def _document(body: bytes, query: str) -> dict[str, Any]:
    document = read_json(body) if body else {}
    if not isinstance(document, dict):
        raise OptionError("the body must be a JSON object")
    document.update({name: values[-1] for name, values in parse_qs(query).items()})
    return document


def _sentence(error: Exception) -> str:
    match error:
        case OptionError():
            return str(error)
        case RequestRefused():
            return error.message
        case KeyError():
            return f"{error} is missing"
        case _:
            return f"cannot be used: {type(error).__name__}: {error}"


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _reply(document: Any, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(document), [("Content-Type", _JSON)])
