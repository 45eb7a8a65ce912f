"""A stream's registered consumer: finds or registers it, and waits until it is ACTIVE.

Several workers may start at once: the first call registers the consumer, the others find it. A worker never deregisters it,
since others may read with the same consumer. `penstock streams consumers` deregisters by hand.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from penstock.core.backoff import Backoff
from penstock.core.limits import STREAM_CONSUMER_COUNT_MAX
from penstock.errors import NotFound, PenstockError, Rejected, ResourceBusy, Throttled, UnknownOutcome
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut, StreamConsumer
from penstock.runtime.loop import Pool

log = logging.getLogger("penstock.consumer")

_DEADLINE_S: Final = 60.0
_BACKOFF: Final = Backoff(0.5, 2.0)
_PAUSE_S_MIN: Final = 0.2
_FAILED_ATTEMPT_PAUSE_S: Final = 300.0


class ConsumerRegistration:
    """One consumer of one stream. Safe to use from several threads.

    Args:
        remedy: The remedy in error messages.
    """

    def __init__(
        self,
        fan_out: FanOut,
        stream_arn: str,
        name: str,
        clock: Clock,
        chance: Chance,
        *,
        remedy: str = "use its name (consumer_name=...), or read with retrieval='polling'",
    ) -> None:
        self.fan_out = fan_out
        self.name = name
        self._stream_arn = stream_arn
        self._clock = clock
        self._chance = chance
        self._remedy = remedy
        self._lock = threading.Lock()
        self._arn: str | None = None
        self._attempt_lock = threading.Lock()
        self._attempt_due_s = float("-inf")  # of `find_in_background`; infinity while one is under way

    def forget_arn(self) -> None:
        """Forget the ARN, because the service reports no such consumer or shard: the next use finds it again."""
        self._arn = None

    def find_in_background(self, pool: Pool) -> bool:
        """Return whether the consumer is known. If not, find or register it on the pool, without waiting.

        There is one attempt at a time. After a failed attempt, calls within the next minutes begin no other one.
        """
        with self._attempt_lock:
            is_due = self._arn is None and self._clock.monotonic_s() >= self._attempt_due_s
            if is_due:
                self._attempt_due_s = float("inf")
        if is_due:
            pool.submit(self._find_or_log)
        return self._arn is not None

    def _find_or_log(self) -> None:
        pause_s = _FAILED_ATTEMPT_PAUSE_S
        try:
            self._find_if_free()
            pause_s = 0.0
        except PenstockError as error:
            log.warning("enhanced fan-out cannot be used, so shards are polled as before: %s", error)
        except Exception:
            log.exception("consumer %s could not be registered, in an unexpected way", self.name)
        finally:
            self._attempt_due_s = self._clock.monotonic_s() + pause_s

    def fetch_arn(self) -> str:
        """Return the ARN of the consumer; find or register it first if it is not known.

        Raises:
            Rejected: The stream has its maximum of consumers.
            ResourceBusy: It did not become ACTIVE in time, or another thread is finding it at the moment: waiting here would
                delay the shards that are read without it.
            PenstockError: The service refuses.
        """
        arn = self._arn or self._find_if_free()
        if arn is None:
            raise ResourceBusy(
                f"consumer {self.name} of stream {self._stream_arn} is being found or registered",
                operation="DescribeStreamConsumer",
                resource=self._stream_arn,
            )
        return arn

    def _find_if_free(self) -> str | None:
        """Find or register the consumer; None if another thread is doing so."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            arn = self._arn
            if arn is None:
                arn = self._arn = self._find_or_register().arn
            return arn
        finally:
            self._lock.release()

    def _find_or_register(self) -> StreamConsumer:
        deadline_s = self._clock.monotonic_s() + _DEADLINE_S
        attempt = 0
        while True:
            attempt += 1
            problem: PenstockError | None = None
            try:
                consumer = self.fan_out.fetch_consumer(self._stream_arn, self.name)
            except NotFound:
                try:
                    consumer = self.fan_out.register_consumer(self._stream_arn, self.name)
                    log.info("registered consumer %s of stream %s", self.name, self._stream_arn)
                except (ResourceBusy, UnknownOutcome) as error:
                    problem = error  # another worker was first, or the answer was lost: fetch it again
                except Throttled as error:
                    problem = error
                    self._check_count(error)
            if problem is None:
                if consumer.status == "ACTIVE":
                    return consumer
                problem = ResourceBusy(
                    f"consumer {self.name} of stream {self._stream_arn} is {consumer.status}",
                    operation="DescribeStreamConsumer",
                    resource=consumer.arn,
                )
            if self._clock.monotonic_s() >= deadline_s:
                raise problem
            self._clock.sleep(_PAUSE_S_MIN + _BACKOFF.delay_s(attempt, self._chance.random()))

    def _check_count(self, error: Throttled) -> None:
        """Distinguish a stream with the maximum of consumers from calls at too high a rate.

        Raises:
            Rejected: Waiting cannot help.
        """
        names = sorted(each.name for each in self.fan_out.fetch_consumers(self._stream_arn))
        if error.code == "LimitExceededException" and len(names) >= STREAM_CONSUMER_COUNT_MAX:
            raise Rejected(
                f"consumer {self.name} cannot be registered: stream {self._stream_arn} has {len(names)} consumers "
                f"({', '.join(names)}), and may have no more. Deregister one that is not used any more (penstock streams consumers "
                f"STREAM --deregister NAME), {self._remedy}",
                operation="RegisterStreamConsumer",
                code=error.code,
                resource=self._stream_arn,
            ) from error
