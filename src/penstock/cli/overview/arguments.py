"""The options of `top` and `dashboard`. Cheap to import: every run of the command line does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.service_options import add_connection_arguments
from penstock.errors import OptionError

if TYPE_CHECKING:
    import argparse

INTERVAL_MIN_S: Final = 1.0
COST: Final = (
    "Nothing is written. Each snapshot costs, for each application, one eventually consistent Scan of its lease table (8 KiB to a "
    "read unit, about 18 leases), and ListShards every half a minute and when a lease of a new shard is seen; for each shard that is asked for its lag, one "
    "GetShardIterator and one or two GetRecords of at most two records, out of the five reads a second that the shard gives to "
    "all. Without names, ListTables once a minute, DescribeTable once for every table, ListQueues once a minute, and GetMetricData for 6 metrics of each queue, which CloudWatch bills. A stream on display costs, once a "
    "minute, DescribeStreamSummary, and GetMetricData for 6 metrics and up to 5 for each open shard, which CloudWatch bills."
)


def add_watch_arguments(parser: argparse.ArgumentParser, interval_s: float) -> None:
    """Add the arguments that `top` and `dashboard` share."""
    parser.add_argument(
        "applications",
        metavar="APPLICATION",
        nargs="*",
        help="lease tables by name, s3://bucket/prefix or file:///folder (default: all that the region's DynamoDB has, and its queues)",
    )
    parser.add_argument(
        "--stream",
        metavar="STREAM",
        help="the stream of applications whose leases do not name it, as the KCL's do not; leases that name theirs keep it",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=interval_s,
        metavar="S",
        help=f"seconds between two snapshots (default: {interval_s:g})",
    )
    parser.add_argument(
        "--lags",
        type=int,
        default=100,
        metavar="N",
        help="fetch the lags of at most N shards of an application in one snapshot, the others in the next; 0: none "
        "(default: 100)",
    )
    parser.add_argument(
        "--lag-warn",
        type=float,
        default=60.0,
        metavar="S",
        help="a shard that is further behind is in trouble (default: 60)",
    )
    parser.add_argument(
        "--silent-after",
        type=float,
        metavar="S",
        help="an owner that has not renewed its lease for S seconds counts as silent (default: 30; 4 for a single snapshot, which "
        "watches up to 64 tables at once for at most S seconds, and then measures lags)",
    )
    add_connection_arguments(parser)


def check_watch_arguments(args: argparse.Namespace) -> None:
    """Check the values of the arguments that `top` and `dashboard` share.

    Raises:
        OptionError: A number is out of range.
    """
    if not args.interval >= INTERVAL_MIN_S:
        raise OptionError(f"--interval {args.interval:g}: expected at least {INTERVAL_MIN_S:g}")
    for name in ("lags", "lag_warn", "silent_after"):
        value = getattr(args, name)
        if value is not None and not value >= 0:
            raise OptionError(f"--{name.replace('_', '-')} {value:g}: expected 0 or more")
