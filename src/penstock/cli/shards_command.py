"""`penstock shards`: a stream's shards as the tree of their lineage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import Output, can_print, safe_json
from penstock.core.hash_key import HASH_KEYS

if TYPE_CHECKING:
    from penstock.core.shard import Shard

_BRANCHES: Final = ("└── ", "├── ", "│   ")
_ASCII_BRANCHES: Final = ("`-- ", "|-- ", "|   ")
DESCRIPTION = "Show a stream's shards and their lineage through splits and merges."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List and print; return the exit status."""
    shards = wiring.open_kinesis(options_of(args)).fetch_shards(args.stream).shards
    if args.json:
        print(safe_json([_document(shard) for shard in shards], indent=2))
        return 0
    output = Output()
    _print_tree(output, args.stream, shards)
    open_count = sum(shard.is_open for shard in shards)
    output.line(f"{open_count} open, {len(shards) - open_count} closed")
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


def _print_tree(output: Output, stream: str, shards: tuple[Shard, ...]) -> None:
    children_by_parent: dict[str, list[tuple[Shard, list[str]]]] = {}
    listed_ids: set[str] = set()
    # A shard's number is larger than its parents', so this order has parents first.
    for shard in sorted(shards, key=lambda shard: shard.shard_id):
        listed_parents = [parent for parent in shard.parents if parent in listed_ids]
        children_by_parent.setdefault(listed_parents[0] if listed_parents else "", []).append(
            (shard, listed_parents)
        )
        listed_ids.add(shard.shard_id)
    output.line(stream, style="bold")
    # A loop, since the lineage of an old stream may be deeper than Python's stack.
    last, inner, beside = _BRANCHES if can_print("".join(_BRANCHES)) else _ASCII_BRANCHES
    stack = _stack_entries(children_by_parent.get("", []), "")
    while stack:
        indent, is_last, shard, listed_parents = stack.pop()
        text = f"{indent}{last if is_last else inner}{_label(shard, listed_parents)}"
        output.line(text, style="green" if shard.is_open else "dim")
        stack += _stack_entries(
            children_by_parent.get(shard.shard_id, []), f"{indent}{'    ' if is_last else beside}"
        )


def _stack_entries(
    children: list[tuple[Shard, list[str]]], indent: str
) -> list[tuple[str, bool, Shard, list[str]]]:
    """Return a stack of children, the first on top: each with its indent, whether it is the last child, and its listed parents."""
    return [
        (indent, place == 0, shard, listed_parents)
        for place, (shard, listed_parents) in enumerate(reversed(children))
    ]


def _label(shard: Shard, listed_parents: list[str]) -> str:
    share = shard.hash_range.size / HASH_KEYS
    notes = [f"{share:.2%} of the keys", "open" if shard.is_open else "closed"]
    if len(listed_parents) > 1:
        notes.append(f"merged with {', '.join(listed_parents[1:])}")
    unlisted_parents = [parent for parent in shard.parents if parent not in listed_parents]
    if unlisted_parents:
        notes.append(f"from {', '.join(unlisted_parents)}, past the retention")
    return f"{shard.shard_id}  {', '.join(notes)}"
