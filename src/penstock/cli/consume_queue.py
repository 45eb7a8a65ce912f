"""`penstock consume --queue`: print the records of a queue, and acknowledge them."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from penstock.cli import queue_records
from penstock.cli.line_format import QUEUE_FIELDS, LineFormat, parse_format
from penstock.cli.record_lines import print_fields
from penstock.cli.service_options import connection_of
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.consumer.metrics_prometheus import PrometheusMetrics
    from penstock.queues import QueueRecord

_STREAM_ARGUMENTS: Final[dict[str, Any]] = {
    "streams": [],
    "application": None,
    "start": "LATEST",
    "fan_out": None,
    "auto_fan_out": None,
    "policy": "even",
}
"""Arguments that have no meaning for a queue, with their defaults."""


def run(args: argparse.Namespace, metrics: PrometheusMetrics | None) -> int:
    """Consume a queue until SIGINT or SIGTERM; return the exit status."""
    from penstock.cli.output_reader import while_output_is_read
    from penstock.queues import QueueConsumer

    for name, default in _STREAM_ARGUMENTS.items():
        if getattr(args, name) != default:
            flag = {"streams": "STREAM", "start": "--from"}.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(f"{flag} has no meaning with --queue: leave it out")
    line_format = None if args.format is None else parse_format(args.format, QUEUE_FIELDS)
    logging.getLogger("penstock.queues").setLevel(logging.INFO)
    lock = threading.Lock()
    is_pipe_broken = threading.Event()

    def print_one(record: QueueRecord) -> None:
        """Print a record and flush the output, before the record is acknowledged."""
        with lock:
            try:
                _print_queue_record(record, args, line_format)
                sys.stdout.flush()
            except BrokenPipeError:
                is_pipe_broken.set()
                consumer.request_stop()
                raise

    consumer = QueueConsumer(
        args.queue,
        print_one,
        concurrency=1,
        worker_id=args.worker_id,
        metrics=metrics,
        connection=connection_of(args),
    )
    with while_output_is_read(consumer.request_stop) as is_reader_gone:
        consumer.run()
    if is_reader_gone.is_set() or is_pipe_broken.is_set():
        raise BrokenPipeError  # records that were not printed are not acknowledged
    return 0


def _print_queue_record(
    record: QueueRecord, args: argparse.Namespace, line_format: LineFormat | None
) -> None:
    if line_format is not None:
        print_fields(line_format.fields(record))
        return
    if args.data:
        print_fields([(record.data, True), (b"\n", False)])
        return
    queue_records.print_record(
        {
            "record_id": record.record_id,
            "sub_sequence_number": record.sub_sequence_number,
            "partition_key": record.partition_key,
            "receive_count": record.receive_count,
            "approximate_arrival_timestamp": record.approximate_arrival_timestamp.isoformat(
                timespec="milliseconds"
            ),
            "first_receive_timestamp": record.first_receive_timestamp.isoformat(timespec="milliseconds"),
        },
        record.data,
        as_json=args.json,
    )
