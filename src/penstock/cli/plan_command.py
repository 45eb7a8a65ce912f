"""`penstock plan`: show whether a stream has the right size, and the cost of each choice."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.moments import ServiceTime, parse_age_or_moment
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import Output, counted, safe_json, warn
from penstock.errors import NotFound, OptionError, ServiceError

if TYPE_CHECKING:
    import argparse

    from penstock.core.sizing.costs import Bill
    from penstock.core.sizing.plan import SizingPlan
    from penstock.core.sizing.prices import Prices
    from penstock.core.sizing.resharding import Merge, Split

DESCRIPTION = "Say whether a stream has the right size: mode, shards, readers, leases, retention and aggregation, each with its cost."
_ACTIONS_SHOWN_MAX: Final = 20
OPTION_FLAGS: Final = {"shards_min": "--min", "shards_max": "--max", "target": "--target"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{DESCRIPTION} Changes nothing."
    parser.add_argument("stream", metavar="STREAM", nargs="?", help="name or ARN")
    parser.add_argument(
        "--since", metavar="AGE", default="7d", help="how far back CloudWatch is asked: 6h, 14d (default: 7d)"
    )
    parser.add_argument(
        "--application",
        metavar="NAME",
        action="append",
        default=[],
        help="an application that polls the stream; may be repeated",
    )
    parser.add_argument("--min", type=int, default=1, metavar="N", help="at least N shards (default: 1)")
    parser.add_argument("--max", type=int, default=500, metavar="N", help="at most N shards (default: 500)")
    parser.add_argument(
        "--target",
        type=float,
        default=0.82,
        metavar="PART",
        help="the part of the write quota that is used at the peak, 0.3 to 0.9 (default: 0.82)",
    )
    parser.add_argument(
        "--prices", metavar="FILE", help="a table of prices, TOML or JSON, instead of those of us-east-1"
    )
    parser.add_argument("--show-prices", action="store_true", help="print the table of prices and end")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, plan and print; return the exit status."""
    from penstock.core.sizing.resharding import limits_for
    from penstock.sizing.planning import PlanPorts, plan_stream
    from penstock.sizing.price_table import load_prices, own_price_text

    if args.show_prices:
        print(own_price_text(), end="")
        return 0
    if args.stream is None:
        raise OptionError("STREAM is missing: the name or ARN of a stream")
    kinesis = wiring.open_kinesis(options_of(args))
    prices, limits, clock = (
        load_prices(args.prices),
        limits_for(args.min, args.max, args.target),
        wiring.SystemClock(),
    )
    for application in args.application:
        _warn_if_without_leases(args, application)
    now_ms = ServiceTime(kinesis, args.stream)
    since_ms = parse_age_or_moment(args.since, "--since", now_ms)
    if since_ms > now_ms():
        raise OptionError(f"--since {args.since}: this moment is in the future")
    plan = plan_stream(
        PlanPorts(
            kinesis,
            wiring.open_cloudwatch_queries(options_of(args)),
            wiring.open_fan_out(options_of(args)),
            clock,
        ),
        args.stream,
        since_ms=since_ms,
        applications=args.application,
        limits=limits,
        prices=prices,
    )
    if args.json:
        print(safe_json(document_of(plan, prices), indent=2))
        return 0
    _print_plan(plan, prices, args.stream)
    return 0


def _warn_if_without_leases(args: argparse.Namespace, application: str) -> None:
    """Warn of an application without leases. Its name may be mistyped, but readers such as Flink or Lambda have no leases."""
    with contextlib.suppress(ServiceError):  # a user who may plan need not be allowed to read leases
        try:
            if wiring.open_lease_table(application, options_of(args)).scan().leases:
                return
        except (NotFound, OptionError):  # no lease table can have the name of such a reader
            pass
        warn(
            f"penstock plan: --application {application}: there is no lease of this application; it is planned as one that polls "
            f"{args.stream}"
        )


# --- text ----------------------------------------------------------------------------------------------------


def _print_plan(plan: SizingPlan, prices: Prices, stream: str) -> None:
    line, usage = Output().line, plan.usage
    line(f"{plan.stream}: {plan.now}, {counted(plan.shards_now, 'open shard')}", "bold")
    line(
        f"written: {usage.written_bytes_per_s / 1000:.4g} KB/s in {usage.put_units_per_s:.4g} PUT payload units a second on average; the busiest "
        f"period used the write quota of {plan.peak_use:.3g} shards"
    )
    for problem in plan.problems:
        line(f"not known: {problem}", "bold")
    line("")
    line(f"Mode: {plan.advised}", "bold")
    line(f"  {plan.mode_reason}")
    for bill in plan.bills:
        _print_bill(line, bill, prices.currency)
    line(f"  warm throughput: {plan.warm_advice}")
    line("")
    line(f"Shards: {plan.shards_planned}, {plan.shards_now} now", "bold")
    for action in plan.actions[:_ACTIONS_SHOWN_MAX]:
        line(f"  {action_text(action, stream)}")
    if len(plan.actions) > _ACTIONS_SHOWN_MAX:
        line(f"  and {len(plan.actions) - _ACTIONS_SHOWN_MAX} more; `penstock autoscale` carries them out")
    line(f"  {plan.size_reason}")
    for hot in plan.hot_keys:
        line(f"  {hot}")
    line("")
    line("Readers", "bold")
    for reader in plan.readers:
        line(
            f"  {reader.name}: {reader.advised}, {reader.now} now; {reader.reason}; fan-out costs {reader.monthly:.2f} a month"
        )
    if not plan.readers:
        line("  no consumer is registered; name applications that poll with --application")
    for bill in plan.lease_bills:
        _print_bill(line, bill, prices.currency)
    line("")
    line(f"Retention: {plan.retention_advice}")
    line(f"Aggregation: {plan.aggregation_advice}")
    line(
        f"Prices: {prices.region}, {prices.dated}, in {prices.currency}; a month has 730 hours. Others: --prices FILE"
    )


def _print_bill(line: Any, bill: Bill, currency: str) -> None:
    line(f"  {bill.amount:>10.2f} {currency} a month: {bill.mode}")
    for each in bill.sums:
        line(f"             {each.item}: {each.terms} = {each.amount:.2f}")
    if bill.note:
        line(f"             {bill.note}")


def action_text(action: Split | Merge, stream: str) -> str:
    """Return an action as the command that carries it out, or in words if it is about a shard that does not exist yet."""
    import shlex

    from penstock.core.sizing.resharding import Split, place_of

    if isinstance(action, Split):
        if action.shard_id.startswith("new-"):
            return f"then split {action.shard_id} at hash key {action.at} ({place_of(action.at)} of all)"
        return shlex.join(
            ["penstock", "streams", "split", stream, action.shard_id, "--at", str(action.at), "--wait"]
        )
    if action.shard_id.startswith("new-") or action.adjacent_id.startswith("new-"):
        return f"then merge {action.shard_id} and {action.adjacent_id}"
    return shlex.join(["penstock", "streams", "merge", stream, action.shard_id, action.adjacent_id, "--wait"])


# --- JSON ----------------------------------------------------------------------------------------------------


def document_of(plan: SizingPlan, prices: Prices) -> dict[str, Any]:
    """Return a plan as a JSON document."""
    import msgspec

    from penstock.core.sizing.resharding import Split

    usage = msgspec.to_builtins(plan.usage)
    return {
        "stream": plan.stream,
        "mode": {"now": plan.now, "advised": plan.advised, "reason": plan.mode_reason},
        "bills": [_bill_document(each) for each in plan.bills],
        "usage": usage,
        "shards": {
            "now": plan.shards_now,
            "planned": plan.shards_planned,
            "mean_if_followed": round(plan.shards_followed, 3),
            "peak_use": round(plan.peak_use, 4),
            "reason": plan.size_reason,
            "actions": [
                {"action": "split", "shard": each.shard_id, "at": str(each.at), "reason": each.reason}
                if isinstance(each, Split)
                else {
                    "action": "merge",
                    "shard": each.shard_id,
                    "adjacent": each.adjacent_id,
                    "reason": each.reason,
                }
                for each in plan.actions
            ],
            "hot_keys": [
                {
                    "shard": each.shard_id,
                    "hash_key": str(each.hash_key),
                    "use": round(each.use, 4),
                    "shard_use": round(each.shard_use, 4),
                }
                for each in plan.hot_keys
            ],
        },
        "readers": [msgspec.to_builtins(each) for each in plan.readers],
        "leases": [_bill_document(each) for each in plan.lease_bills],
        "retention": plan.retention_advice,
        "aggregation": plan.aggregation_advice,
        "warm_throughput": plan.warm_advice,
        "problems": list(plan.problems),
        "prices": msgspec.to_builtins(prices),
    }


def _bill_document(bill: Bill) -> dict[str, Any]:
    return {
        "mode": bill.mode,
        "monthly": round(bill.amount, 4),
        "sums": [
            {"item": each.item, "sum": each.terms, "monthly": round(each.amount, 4)} for each in bill.sums
        ],
        "note": bill.note,
    }
