"""The demo from beginning to end: publish, read, reshard, kill, verify."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd

from penstock.cli.flights.dataset import events, load_flights
from penstock.cli.flights.display import Display
from penstock.cli.flights.driver import Driver
from penstock.cli.flights.publish import Publisher
from penstock.cli.flights.verify import expected_delays, verify_delays, verify_events
from penstock.core.aggregation import deaggregate
from penstock.errors import PenstockError
from penstock.local import LocalKinesis
from penstock.local.handle import Handle
from penstock.wiring import AwsOptions, open_kinesis

FLIGHTS: Final = "flights"
DELAYS: Final = "delays"
SHARD_COUNT: Final = 4
_POLL_S: Final = 0.1
_START_DEADLINE_S: Final = 120.0
_READ_DEADLINE_S: Final = 600.0


class DemoFailed(PenstockError):  # noqa: N818 - named for what happened
    """The demo could not be told to its end; the message says at what."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo shall do.

    Args:
        record_count: Events, or None for all 336,776.
        kill_count: How often the query is killed.
        seed: Where chance comes from when it is killed more than once.
        limits: Whether the embedded Kinesis keeps the service's quotas.
    """

    record_count: int | None = None
    kill_count: int = 1
    seed: int = 0
    limits: bool = True


@dataclass(slots=True)
class Outcome:
    """What came out."""

    record_count: int = 0
    lost_count: int = 0
    duplicate_count: int = 0
    findings: list[str] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)

    def last_line(self) -> str:
        """Say it in the line that the whole demo is about."""
        if self.findings:
            return f"failed: {self.findings[0]}"
        return f"verified: {self.record_count} flights, {self.lost_count} lost, {self.duplicate_count} duplicated"


class Story:
    """One run of the demo.

    Args:
        plan: What to do.
        work: An empty folder for Parquet, checkpoints and logs.
        display: Where to show it.
    """

    def __init__(self, plan: Plan, work: Path, display: Display, flights: pd.DataFrame) -> None:
        self._plan = plan
        self._work = work
        self._display = display
        self._flights = flights
        self._chance = random.Random(plan.seed)
        self._kills: list[str] = []
        self._began_s = time.monotonic()

    def run(self) -> Outcome:
        """Tell the story.

        Raises:
            DemoFailed: Something did not happen in time, or the query failed.
        """
        with LocalKinesis.process(limits=self._plan.limits) as server:
            self._display.step(
                f"embedded Kinesis at {server.endpoint_url}; stream {FLIGHTS} with {SHARD_COUNT} shards"
            )
            server.create_stream(FLIGHTS, shards=SHARD_COUNT)
            server.create_stream(DELAYS, shards=2)
            # A small run must still have enough batches to be killed and resharded in between.
            driver = Driver(self._work, server.environ(), max(200, min(30_000, len(self._flights) // 12)))
            publisher = self._start_publishing(server)
            try:
                self._live(server, driver, publisher)
                return self._verify(server, driver, publisher)
            finally:
                driver.kill()

    def _start_publishing(self, server: Handle) -> Publisher:
        environ = server.environ()
        options = AwsOptions(
            region=environ["AWS_REGION"],
            endpoint_url=server.endpoint_url,
            access_key_id=environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        )
        count = len(self._flights)
        self._display.step(f"publishing {count} flights as JSON, aggregated, partition key = tail number")
        publisher = Publisher(open_kinesis(options), FLIGHTS, events(self._flights), count, _READ_DEADLINE_S)
        publisher.start()
        return publisher

    # --- while it runs ------------------------------------------------------------------------------------

    def _live(self, server: Handle, driver: Driver, publisher: Publisher) -> None:
        self._display.step("a Spark query reads them: events to Parquet, average delays to a second stream")
        driver.start()
        total = len(self._flights)
        acts: list[tuple[float, Callable[[], None]]] = [
            (0.20, lambda: self._split(server)),
            (0.45, lambda: self._merge(server)),
        ]
        for number in range(self._plan.kill_count):
            share = 0.30 if self._plan.kill_count == 1 else 0.05 + 0.85 * number / self._plan.kill_count
            acts.append((share, lambda: self._kill(driver)))
        acts.sort(key=lambda act: act[0])
        with self._display.bars():
            deadline_s = time.monotonic() + _READ_DEADLINE_S
            while not (publisher.is_done and driver.read_count >= total and not acts):
                self._display.update(publisher.done_count, driver.read_count)
                self._check(driver, publisher, deadline_s)
                if acts and driver.is_started and driver.read_count >= acts[0][0] * total:
                    acts.pop(0)[1]()
                time.sleep(_POLL_S)
            self._display.update(total, total)
        self._display.step("everything is read; the queries finish what is in hand and stop")
        (self._work / "stop").touch()
        self._wait(
            lambda: driver.returncode is not None or self._restarted(driver), "the queries to stop", driver
        )
        if driver.returncode != 0:
            raise DemoFailed(f"the Spark process ended with status {driver.returncode}\n{driver.log_tail()}")

    def _check(self, driver: Driver, publisher: Publisher, deadline_s: float) -> None:
        if publisher.failure is not None:
            raise DemoFailed(f"publishing failed: {publisher.failure}") from publisher.failure
        self._restarted(driver)
        if time.monotonic() > deadline_s:
            raise DemoFailed(
                f"after {_READ_DEADLINE_S:g} s only {driver.read_count} of {len(self._flights)} flights were read\n"
                f"{driver.log_tail()}"
            )

    def _restarted(self, driver: Driver) -> bool:
        """Start the driver again when it ended because of a kill; anything else is a failure."""
        if driver.returncode in (None, 0):
            return False
        if not self._kills or driver.start_count > len(self._kills):
            raise DemoFailed(f"the Spark process ended by itself: {driver.failure}\n{driver.log_tail()}")
        driver.start()
        return False

    def _split(self, server: Handle) -> None:
        client = server.client("kinesis")
        shard = _open_shards(client)[0]
        low, high = int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"])
        client.split_shard(
            StreamName=FLIGHTS, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )
        self._display.step(f"split {shard['ShardId']} in two while it is written and read")

    def _merge(self, server: Handle) -> None:
        client = server.client("kinesis")
        self._wait(lambda: _status(client) == "ACTIVE", "the split to be done")
        one, other = _open_shards(client)[-2:]
        client.merge_shards(
            StreamName=FLIGHTS, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
        )
        self._display.step(f"merged {one['ShardId']} and {other['ShardId']}")

    def _kill(self, driver: Driver) -> None:
        if self._plan.kill_count == 1:
            self._wait(
                lambda: driver.returncode is not None or driver.is_in_a_batch(),
                "a batch to be in the middle of",
                driver,
            )
            self._kills.append("everything")
            driver.kill()
            self._display.step(
                "killed the query's driver with SIGKILL in the middle of a batch, and started it again"
            )
        else:
            time.sleep(self._chance.uniform(0, 0.5))
            what = driver.kill_part(self._chance)
            self._kills.append(what)
            self._display.note(f"kill {len(self._kills)} of {self._plan.kill_count}: {what}")

    def _wait(self, condition: Callable[[], bool], what: str, driver: Driver | None = None) -> None:
        deadline_s = time.monotonic() + _START_DEADLINE_S
        while not condition():
            if time.monotonic() > deadline_s:
                tail = "" if driver is None else f"\n{driver.log_tail()}"
                raise DemoFailed(f"waited {_START_DEADLINE_S:g} s for {what}{tail}")
            time.sleep(_POLL_S)

    # --- the end ------------------------------------------------------------------------------------------

    def _verify(self, server: Handle, driver: Driver, publisher: Publisher) -> Outcome:
        self._display.step("comparing what came out with the data set")
        got = pd.concat(
            [pd.read_parquet(file) for file in sorted((self._work / "events").glob("batch-*/*.parquet"))],
            ignore_index=True,
        )
        verdict = verify_events(self._flights, got)
        delays, delay_count = read_delays(server)
        findings = [*verdict.findings, *verify_delays(expected_delays(self._flights), delays)]
        duration_s = time.monotonic() - self._began_s
        report = publisher.report
        figures = [
            ("flights published", f"{publisher.done_count:,}"),
            ("as Kinesis records", f"{0 if report is None else report.kinesis_record_count:,}"),
            ("published", f"{publisher.bytes_count / 1e6 / max(publisher.duration_s, 0.001):.1f} MB/s"),
            ("rows in Parquet", f"{len(got):,}"),
            ("batches", f"{got['batch'].nunique()}"),
            ("average delays sent", f"{delay_count:,} for {len(delays):,} hours"),
            ("shards read", f"{got['shardId'].nunique()}"),
            ("restarts", f"{driver.start_count - 1}"),
            ("lag at the end", f"{driver.lag_ms} ms"),
            ("time", f"{duration_s:.0f} s"),
        ]
        return Outcome(len(got), verdict.lost_count, verdict.duplicate_count, findings, figures)


def _open_shards(client: Any) -> list[dict[str, Any]]:
    shards = client.list_shards(StreamName=FLIGHTS, ShardFilter={"Type": "AT_LATEST"})["Shards"]
    return sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))


def _status(client: Any) -> str:
    return str(client.describe_stream_summary(StreamName=FLIGHTS)["StreamDescriptionSummary"]["StreamStatus"])


def read_delays(server: Handle) -> tuple[pd.DataFrame, int]:
    """Read the second stream: the last value for each origin and hour, and how many values there were."""
    client = server.client("kinesis")
    last: dict[tuple[str, int], dict[str, Any]] = {}
    count = 0
    for shard in client.list_shards(StreamName=DELAYS)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=DELAYS, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                inner = deaggregate(record["Data"])
                for blob in [record["Data"]] if inner is None else [each.data for each in inner]:
                    value = json.loads(blob)
                    last[(value["origin"], value["hour"])] = value
                    count += 1
            iterator = page["NextShardIterator"] if page["MillisBehindLatest"] else None
            time.sleep(0.25)  # five reads a second and shard are the quota
    frame = pd.DataFrame(
        [(origin, hour, value["departures"], value.get("delay")) for (origin, hour), value in last.items()],
        columns=["origin", "hour", "departures", "delay"],
    )
    return frame.set_index(["origin", "hour"]), count


def load(plan: Plan) -> pd.DataFrame:
    """Give the flights of a plan."""
    return load_flights(plan.record_count)
