"""`penstock shards`: a stream's shards as the tree of their lineage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from penstock.cli.service_options import add_connection_arguments, open_kinesis
from penstock.cli.terminal import escape_text, open_console, safe_json

if TYPE_CHECKING:
    from penstock.cli.service_options import Subparsers
    from penstock.core.shard import Shard

DESCRIPTION = "Show a stream's shards and which came from which by splits and merges."


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser("shards", help=DESCRIPTION, description=DESCRIPTION)
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List and print; gives the exit status."""
    shards = open_kinesis(args).fetch_shards(args.stream).shards
    if args.json:
        print(safe_json([_document(shard) for shard in shards], indent=2))
        return 0
    console = open_console()
    console.print(_tree(args.stream, shards))
    open_count = sum(shard.is_open for shard in shards)
    console.print(f"{open_count} open, {len(shards) - open_count} closed")
    return 0


def _document(shard: Shard) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "is_open": shard.is_open,
        "parents": list(shard.parents),
        "hash_range": [str(shard.hash_range.start), str(shard.hash_range.end)],
        "starting_sequence_number": shard.starting_sequence_number,
        "ending_sequence_number": shard.ending_sequence_number,
    }


def _tree(stream: str, shards: tuple[Shard, ...]) -> Any:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(escape_text(stream), style="bold"))
    nodes: dict[str, Tree] = {}
    # A shard's number is larger than its parents', so parents come first in this order.
    for shard in sorted(shards, key=lambda shard: shard.shard_id):
        known = [parent for parent in shard.parents if parent in nodes]
        parent = nodes[known[0]] if known else tree
        nodes[shard.shard_id] = parent.add(_label(shard, known))
    return tree


def _label(shard: Shard, known: list[str]) -> Any:
    from rich.text import Text

    share = (shard.hash_range.end - shard.hash_range.start + 1) / 2**128
    style = "green" if shard.is_open else "dim"
    notes = [f"{share:.2%} of the keys", "open" if shard.is_open else "closed"]
    if len(known) > 1:
        notes.append(f"merged with {', '.join(known[1:])}")
    gone = [parent for parent in shard.parents if parent not in known]
    if gone:
        notes.append(f"from {', '.join(gone)}, past the retention")
    return Text.assemble((escape_text(shard.shard_id), style), escape_text(f"  {', '.join(notes)}"))
