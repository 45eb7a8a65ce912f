"""The command line of the embedded Kinesis: `penstock-local` and `python -m penstock_local`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
from typing import TYPE_CHECKING

from penstock_local.errors import LocalError, OptionError

if TYPE_CHECKING:
    from penstock_local.server import LocalOptions, Server

_FLAGS = {
    "port": "--port",
    "time_factor": "--time-factor",
    "state_dir": "--state",
    "settle_s": "--settle",
    "memory_bytes_max": "--memory-max",
    "region": "--region",
    "allow_hosts": "--allow-host",
    "cert": "--cert",
    "key": "--key",
    "replay": "--replay",
}
_FIELDS_AT_START = re.compile(rf"^({'|'.join(_FLAGS)})( and ({'|'.join(_FLAGS)}))?\b(?= )")
DESCRIPTION = "Run an embedded Kinesis (with DynamoDB and CloudWatch) on this machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server to a parser."""
    parser.add_argument(
        "--port",
        type=int,
        default=4567,
        metavar="N",
        help="TCP port on 127.0.0.1; 0 takes a free one (default: 4567)",
    )
    parser.add_argument(
        "--shards",
        nargs="*",
        default=[],
        metavar="NAME=N",
        help="streams to create at the start, each with N shards; one that is there keeps its own",
    )
    parser.add_argument("--no-limits", action="store_true", help="do not enforce the service's quotas")
    parser.add_argument(
        "--no-on-demand-growth",
        action="store_true",
        help="do not split the shards of on-demand streams by their load; --no-limits does not either",
    )
    parser.add_argument(
        "--time-factor",
        type=float,
        default=1.0,
        metavar="F",
        help="virtual seconds per real second; 0 stops the clock (default: 1)",
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="keep streams, records and tables in this folder (default: nothing is kept)",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=0.2,
        metavar="S",
        help="virtual seconds that CREATING, UPDATING and DELETING last (default: 0.2)",
    )
    parser.add_argument(
        "--memory-max",
        type=_size,
        default=4 * 1024**3,
        metavar="SIZE",
        help="records kept at most: bytes, 512m, 4g, 4GiB; more is refused (default: 4g)",
    )
    # for a parent process that may die without stopping the server: its end of the pipe closes then
    parser.add_argument("--stop-on-eof", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tls", action="store_true", help="speak TLS, with a certificate made at the start")
    parser.add_argument(
        "--cert",
        metavar="FILE",
        help="speak TLS with this certificate: PEM, with what signed it up to the root",
    )
    parser.add_argument("--key", metavar="FILE", help="key of --cert: PEM")
    parser.add_argument(
        "--replay",
        action="append",
        default=[],
        metavar="FILE",
        help="replay the stream in this recording of `penstock record`; may be repeated, for several streams",
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--at-once", action="store_true", help="replay: all records are there at the start (default)"
    )
    pace.add_argument(
        "--speed",
        type=float,
        metavar="F",
        help="replay: records appear at their moments, F times as fast as they arrived",
    )
    pace.add_argument(
        "--step", action="store_true", help="replay: the next record appears at each Enter in this terminal"
    )
    parser.add_argument(
        "--export",
        action="store_true",
        help="start nothing; print the lines for the shell of the server that runs on --port",
    )
    parser.add_argument(
        "--region", default="us-east-1", metavar="NAME", help="region of the ARNs (default: us-east-1)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer to this host name too, beside localhost and loopback addresses; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Run the server in the foreground until SIGINT or SIGTERM; returns the exit status."""
    # loaded here: loading the server takes longer than parsing
    from penstock_local import LocalOptions
    from penstock_local.about import fetch_description, printable

    try:
        if args.export:
            print("\n".join(fetch_description(args.port).lines()))  # noqa: T201 - a command line prints
            return 0
        streams = [_stream(text) for text in args.shards]
        names = [name for name, _ in streams]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"--shards names stream {name} twice")
        _check_pace(args)
        is_paced = args.step or args.speed is not None
        options = LocalOptions(
            port=args.port,
            limits=not args.no_limits,
            on_demand_growth=not args.no_on_demand_growth,
            time_factor=0.0 if args.step else args.time_factor if args.speed is None else args.speed,
            state_dir=args.state,
            settle_s=args.settle,
            memory_bytes_max=args.memory_max,
            region=args.region,
            allow_hosts=tuple(args.allow_host),
            tls=args.tls,
            cert=args.cert,
            key=args.key,
            replay=tuple(args.replay),
            replay_from="start" if is_paced else "end",
        )
        asyncio.run(_serve(options, streams, stop_on_eof=args.stop_on_eof, reads_steps=args.step))
    except LocalError as error:
        flags = _FLAGS if args.speed is None else {**_FLAGS, "time_factor": "--speed"}
        message = _FIELDS_AT_START.sub(
            lambda at: " and ".join(flags[name] for name in at[0].split(" and ")), str(error)
        )
        print(f"penstock-local: {printable(message)}", file=sys.stderr)  # noqa: T201 - a command line prints
        return 2
    return 0


def _size(text: str) -> int:
    """Read a number of bytes as the options of Spark: `64m`, `64MB` and `64 MiB` are the same."""
    size = re.fullmatch(r"(\d+)\s*([kmgt](?:i?b)?|b|)", text.strip().lower(), re.ASCII)
    if size is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 1048576, 512m, 4g or 4 GiB, not {text!r}")
    return int(size[1]) * int(1024 ** (" kmgt".find(size[2][:1]) if size[2] not in ("", "b") else 0))


def _stream(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if not name or not count.isdecimal() or int(count) < 1:
        raise OptionError(f"--shards takes NAME=N with N of at least 1, not {text!r}")
    return name, int(count)


def _check_pace(args: argparse.Namespace) -> None:
    paces = {"--step": args.step, "--at-once": args.at_once, "--speed": args.speed is not None}
    pace = next((flag for flag, is_given in paces.items() if is_given), None)
    if pace is not None and not args.replay:
        raise OptionError(f"{pace} is for a replay: name a recording with --replay FILE")
    if pace in ("--step", "--speed") and args.time_factor not in (1.0, args.speed):
        raise OptionError(f"{pace} and --time-factor exclude each other")


async def _serve(
    options: LocalOptions, streams: list[tuple[str, int]], *, stop_on_eof: bool, reads_steps: bool
) -> None:
    from penstock_local.server import serve_until

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if stop_on_eof:
        loop.add_reader(sys.stdin, lambda: None if os.read(sys.stdin.fileno(), 1024) else stop.set())

    def step(server: Server) -> None:
        if os.read(sys.stdin.fileno(), 1024):
            print(server.step(), file=sys.stderr, flush=True)  # noqa: T201 - a command line prints
        else:
            loop.remove_reader(sys.stdin)

    def announce(server: Server) -> None:
        if reads_steps:
            try:
                loop.add_reader(sys.stdin, step, server)
            except (OSError, ValueError) as error:  # a file, or no input at all
                raise OptionError(f"--step needs a terminal or a pipe as its input: {error}") from error
        server.create_streams(streams)
        # a reader that went away must not stop the server
        with contextlib.suppress(BrokenPipeError):
            print("\n".join(server.describe().lines()), flush=True)  # noqa: T201 - a command line prints

    await serve_until(options, announce, stop)
