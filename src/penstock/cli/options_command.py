"""`penstock options`: every option of the Spark source and sink."""

from __future__ import annotations

import argparse
import json
from typing import Any

from penstock.cli.terminal import Output, warn
from penstock.core.keyword_options import did_you_mean

DESCRIPTION = "List the options of the Spark source and sink."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only options whose name, alias or meaning holds a word"
    )


def run(args: argparse.Namespace) -> int:
    """Print the options; return 1 if no option has the words."""
    from penstock.spark.options.option_docs import option_rows, render_markdown

    rows = [row for row in option_rows() if _matches(row, args.words)]
    if args.words and not rows:
        names = (name for row in option_rows() for name in (row["name"], *row["aliases"]))
        hint = did_you_mean(args.words[0], names) if len(args.words) == 1 else ""
        warn(f"no option holds {' and '.join(args.words)}; {hint}`penstock options` lists them all")
        return 1
    if args.json:
        print(json.dumps(rows, indent=2))
    elif args.markdown:
        print(render_markdown(), end="")
    else:
        _print_table(rows)
    return 0


def _matches(row: dict[str, Any], words: list[str]) -> bool:
    text = " ".join([row["name"], *row["aliases"], row["meaning"]]).lower()
    return all(word.lower() in text for word in words)


def _print_table(rows: list[dict[str, Any]]) -> None:
    Output().table(
        ("option", "default", "for", "meaning"),
        [
            (row["name"], row["default"] or f"({row['form']})", ", ".join(row["scopes"]), row["meaning"])
            for row in rows
        ],
    )
