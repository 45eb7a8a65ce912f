"""Checkers of the sink's promises: nothing lost in silence, in order, twice only with a cause, and reported."""

from __future__ import annotations

import json
import re
from typing import Final

from penstock.spark.sink.report import FILE_NAME
from penstock_sim.checker import CLOCK_TOLERANCE, Broken, Checker, NoCrash
from penstock_sim.events import processes, producers, sinks
from penstock_sim.history import AttemptHistory
from penstock_sim.producer_checkers import KeysInOrder, RarelyTwice

_ROW: Final = re.compile(r"\brow (\d+)\b")
_FRUITLESS_CALLS_MAX: Final = 12
_WINDOW_S: Final = 1.0
_SLACK_S: Final = 30.0
"""A slow call, a lost answer, and the pauses between tries."""
_PAUSE_MAX_S: Final = 15.0
_CAUSES: Final = (
    "AccessDenied",
    "ExpiredToken",
    "does not exist",
    "nothing was acknowledged by shard",
    "hrottled",
    "unavailable",
    "no answer",
    "connection reset",
)
_MISSING: Final = ("not acknowledged", "dead letters cannot be written")
_SEND_WITHIN_S: Final = 5.0
_STILL: Final = re.compile(r"was acknowledged by shard \S+ for (\d+) s")


class NothingLostInSilence(NoCrash):
    """K1: a task that is done has written each of its rows, or put it aside; a batch that is logged as done is whole.

    Scorecard S12: each row of a committed batch is in the stream. Here: written by the attempt that reported it, and readable.
    """

    invariant = "K1"

    def _begin(self) -> None:
        self._done: set[str] = set()
        self._logged: set[tuple[str, int]] = set()
        self._filed: set[str] = set()

    def _on_file_written(self, event: sinks.FileWritten) -> None:
        if event.name != FILE_NAME:
            self._filed.update(_rows_of_file(event.name, event.content))

    def _on_write_task_done(self, event: sinks.WriteTaskDone) -> None:
        name = event.attempt
        self._done.add(name)
        attempt = self.history.attempts[name]
        for text in attempt.texts:
            if text not in self.history.bad_rows:
                if not attempt.seen[text]:
                    raise Broken(f"{name} is done, and readers see nothing of its row {text}")
            elif not attempt.keeps_letters:
                raise Broken(
                    f"{name} is done, and the service cannot accept its row {text} ({self.history.bad_rows[text]})"
                )
            elif not attempt.letters[text] and text not in self._filed:
                raise Broken(
                    f"{name} is done, and its row {text} ({self.history.bad_rows[text]}) is nowhere put aside"
                )

    def _on_write_logged(self, event: sinks.WriteLogged) -> None:
        query, batch, names = event.query, event.batch, event.attempts
        self._logged.add((query, batch))
        if not self._done.issuperset(names):
            raise Broken(f"batch {batch} of {query} is logged as done by {names}, one of which never ended")
        written = tuple(self.history.attempts[name].texts for name in names)
        if written != self.history.planned_writes[query, batch]:
            raise Broken(f"batch {batch} of {query} is logged as done, and its tasks had other rows")

    def _on_request_too_large(self, event: sinks.RequestTooLarge) -> None:
        raise Broken(
            f"{event.attempt} sends a request of {event.entry_count} entries, the largest of {event.size_bytes} bytes"
        )

    def at_end(self) -> None:
        for query, batch in self.history.planned_writes:
            if (query, batch) not in self._logged:
                raise Broken(f"batch {batch} of {query} was never done")


class OrderOfEachAttempt(Checker):
    """K2: an attempt's rows of a key are first seen in their order in the batch."""

    invariant = "K2"

    def _begin(self) -> None:
        self._left: dict[tuple[str, str], list[str]] = {}

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        name = event.attempt
        attempt = self.history.attempts[name]
        for text in event.texts if event.is_read else ():
            if not attempt.seen[text]:
                left = self._left_of(name, self.history.key_of[text])
                if left[0] != text:
                    raise Broken(f"{event.key} takes {text} of {name}, and {left[0]} is not there yet")
                left.pop(0)

    def _left_of(self, name: str, group: str) -> list[str]:
        if (name, group) not in self._left:
            texts = self.history.attempts[name].texts
            self._left[name, group] = [text for text in texts if self.history.key_of.get(text) == group]
        return self._left[name, group]


class TwiceWithCause(RarelyTwice):
    """K3: an attempt's rows are seen once, and one more time for each call without an answer; its report hides no copy."""

    invariant = "K3"

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        bad = [text for text in event.texts if text in self.history.bad_rows]
        if bad and event.is_read:
            why = self.history.bad_rows[bad[0]]
            raise Broken(f"{event.key} takes {bad[0]} of {event.attempt}, which is {why}")
        super()._on_records_stored(event)

    def _on_write_task_done(self, event: sinks.WriteTaskDone) -> None:
        name = event.attempt
        attempt = self.history.attempts[name]
        copies = sum(count - 1 for count in attempt.seen.values() if count)
        if copies > event.twice_count:
            raise Broken(f"{name} reports {event.twice_count} possible copies, and there are {copies}")
        good = [text for text in attempt.texts if text not in self.history.bad_rows]
        written = sum(count for _, count in event.counts)
        if (written, event.letter_count) != (len(good), len(attempt.texts) - len(good)):
            raise Broken(
                f"{name} reports {written} rows and {event.letter_count} dead letters of {len(attempt.texts)}"
            )


class ErrorsName(Checker):
    """K4: a task that fails has a cause, and its error names it: the stream, the row, the code, the shard, the option.

    Undelivered rows are counted, but for dead letters: their stream may refuse them before the first is sent.
    """

    invariant = "K4"

    def _begin(self) -> None:
        self._refused_s: dict[str, float] = {}

    def _on_write_task_failed(self, event: sinks.WriteTaskFailed) -> None:
        name, kind, text = event.attempt, event.error, event.text
        attempt = self.history.attempts[name]
        if kind == "RecordError":
            self._judge_record_error(name, attempt, text)
        elif "deadLetterPath" in text and "cannot be written" in text:
            return
        elif not text.startswith("stream ") and "stream" not in text and "describe" not in text:
            raise Broken(f"{name} fails with {kind}, which names no stream: {text}")
        elif kind == "DeliveryFailed" and not any(missing in text for missing in _MISSING):
            raise Broken(f"{name} fails with {kind}, which does not say what is missing: {text}")
        elif not any(cause in text for cause in _CAUSES):
            raise Broken(f"{name} fails with {kind}, which names no cause: {text}")
        elif self.history.healed_s is not None and attempt.began_s > self.history.healed_s:
            raise Broken(f"{name} fails with {kind} although nothing is wrong: {text}")
        self._judge_stillness(name, text)

    def _judge_stillness(self, name: str, text: str) -> None:
        still = _STILL.search(text)
        if still is None:
            return
        if "no answer yet" in text:
            raise Broken(f"{name} gives up although nothing of it was refused: {text}")
        since_s = self.history.now - int(still[1]) * (1 - CLOCK_TOLERANCE)
        refused_s = self._refused_s.get(name)
        if refused_s is None or refused_s > since_s + _SEND_WITHIN_S:
            raise Broken(f"{name} gives up, and the first refusal came at {refused_s} s: {text}")

    def _on_refusal(self, event: sinks.RowsRefused | producers.RecordsUnanswered) -> None:
        self._refused_s.setdefault(event.attempt, self.history.now)

    def _judge_record_error(self, name: str, attempt: AttemptHistory, text: str) -> None:
        found = _ROW.search(text)
        if found is None or not (row := int(found[1])) < len(attempt.texts):
            raise Broken(f"{name} fails with RecordError, which names no row of it: {text}")
        named = attempt.texts[row]
        if named not in self.history.bad_rows:
            raise Broken(f"{name} fails for its row {named}, which the service can accept: {text}")
        if attempt.keeps_letters and "does not fit" not in text:
            raise Broken(f"{name} fails for its row {named}, which is to be put aside: {text}")
        if "stream" not in text:
            raise Broken(f"{name} fails for its row {named}, and names no stream: {text}")


class ReportAddsUp(Checker):
    """K5: the sink's report counts each committed batch once, however often it was committed."""

    invariant = "K5"

    def _begin(self) -> None:
        self._counted: dict[str, set[int]] = {}

    def _on_file_written(self, event: sinks.FileWritten) -> None:
        query = event.location.removeprefix("checkpoint of ")
        if event.name != FILE_NAME or query in self.history.second_drivers:
            return
        report = json.loads(event.content)
        counted = self._counted.setdefault(query, set())
        counted.add(report["batch"])
        texts = [
            text for batch in counted for part in self.history.planned_writes[query, batch] for text in part
        ]
        good = sum(text not in self.history.bad_rows for text in texts)
        passed = sum(each["user_record_count"] for each in report["total"].values())
        if (passed, report["dead_letters_total"]) != (good, len(texts) - good):
            raise Broken(
                f"the report of {query} counts {passed} rows and {report['dead_letters_total']} dead letters up to batch "
                f"{report['batch']}, and there are {good} and {len(texts) - good}"
            )


class LettersOnce(Checker):
    """K6: a file of dead letters holds exactly the rows of its task that the service can never accept."""

    invariant = "K6"

    def _on_file_written(self, event: sinks.FileWritten) -> None:
        name = event.name
        if name == FILE_NAME:
            return
        found = _rows_of_file(name, event.content)
        prefix = found[0].rpartition(".")[0] + "." if found else ""
        wanted = [text for text in self.history.bad_rows if text.startswith(prefix)]
        if sorted(found) != sorted(wanted):
            raise Broken(f"{name} holds {found}, and {wanted} belong there")


class EndsInTime(Checker):
    """K7: an attempt that gets nothing acknowledged ends soon after the sink's deadline, and makes no storm of calls."""

    invariant = "K7"

    def _begin(self) -> None:
        self._calls: dict[str, list[float]] = {}
        self._tried_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self._executor_of: dict[str, str] = {}
        self._deadline_s: dict[str, float] = {}

    def _on_write_task_started(self, event: sinks.WriteTaskStarted) -> None:
        self._executor_of[event.attempt] = event.executor
        self._deadline_s[event.attempt] = event.deadline_s

    def _on_progress(self, event: producers.RecordsStored | sinks.DeadLettersStored) -> None:
        self._tried_s.pop(event.attempt, None)
        self._calls.pop(event.attempt, None)

    def _on_process_paused(self, event: processes.ProcessPaused) -> None:
        for name in [name for name, executor in self._executor_of.items() if executor == event.who]:
            if name in self._tried_s:
                self._tried_s[name] = max(self._tried_s[name], event.until_s)

    def _on_call_made(self, event: processes.CallMade) -> None:
        attempt = event.key
        if event.call != "sink put":
            return
        now = self.history.now
        calls = [since for since in self._calls.get(attempt, ()) if since > now - _WINDOW_S]
        self._calls[attempt] = [*calls, now]
        if len(calls) >= _FRUITLESS_CALLS_MAX:
            raise Broken(
                f"{attempt} calls PutRecords {len(calls) + 1} times in vain within {_WINDOW_S:.0f} s"
            )
        still_s = now - self._tried_s.setdefault(attempt, now)
        last_s, self._last_s[attempt] = self._last_s.get(attempt, now), now
        # At the remaining rate, a large record that was refused waits long before it is tried again.
        if (
            now - last_s < _PAUSE_MAX_S
            and still_s > self._deadline_s[attempt] * (1 + CLOCK_TOLERANCE) + _SLACK_S
        ):
            raise Broken(
                f"{attempt} still writes {still_s:.0f} s after the first of its calls that stored nothing"
            )


def _rows_of_file(name: str, content: str) -> list[str]:
    """Return the names of the rows in a file of dead letters."""
    query, _, rest = name.removeprefix("dead-letters-").partition("-batch-")
    batch, part = rest.split("-")[0], int(rest.rpartition("-part-")[2].removesuffix(".jsonl"))
    return [f"{query}:{batch}.{part}.{json.loads(line)['row']}" for line in content.splitlines()]


SINKS: Final = (NothingLostInSilence, TwiceWithCause, ErrorsName, ReportAddsUp, LettersOnce, EndsInTime)
IN_ORDER: Final = (OrderOfEachAttempt, KeysInOrder)
