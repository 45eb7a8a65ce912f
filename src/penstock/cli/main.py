"""`penstock`: finds the commands, runs one, and turns errors into one clear line.

Every command is a module: `DESCRIPTION` and `add_arguments(parser)` describe it and must be cheap, `run(args)` runs it and returns the
exit status. Heavy and optional packages are imported in `run`. If a module has `OPTION_FLAGS`, this mapping has the flag
of each field of an options value, so that errors name the typed flag.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Final

from penstock import wiring
from penstock._version import __version__
from penstock.cli.command_parser import CommandParser
from penstock.cli.separate_commands import MissingCommand, is_missing
from penstock.cli.service_options import options_of
from penstock.cli.terminal import SafeFormatter, prepare_output, warn
from penstock.core.keyword_options import did_you_mean
from penstock.errors import NotFound, PenstockError, UsageError

_COMMANDS: Final = {
    "consume": "penstock.cli.consume_command",
    "tail": "penstock.cli.tail_command",
    "record": "penstock.cli.record_command",
    "put": "penstock.cli.put_command",
    "sql": "penstock.cli.sql_command",
    "shards": "penstock.cli.shards_command",
    "streams": "penstock.cli.streams_command",
    "plan": "penstock.cli.plan_command",
    "autoscale": "penstock.cli.autoscale_command",
    "queues": "penstock.cli.queues_command",
    "leases": "penstock.cli.leases_command",
    "deliver": "penstock.cli.deliver_command",
    "top": "penstock.cli.top_command",
    "dashboard": "penstock.cli.dashboard_command",
    "local": "penstock_local.command",
    "simulate": "penstock_sim.command",
    "demo": "penstock_demo.command",  # imported by name, as the two above: other distributions bring them
    "init": "penstock.cli.init_command",
    "options": "penstock.cli.options_command",
    "completion": "penstock.cli.completion_command",
}
_EXTRAS: Final = {
    "pyspark": "spark",
    "pyarrow": "arrow",
    "pandas": "spark",
    "py4j": "spark",
    "yaml": "deliver",
    "penstock_local": "local",
}
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_CLOSED_PIPE: Final = 141  # 128 plus the number of SIGPIPE, as shells show it for `cat`


def build_parser() -> tuple[CommandParser, dict[str, ModuleType]]:
    """Return the parser, and the module behind each command."""
    parser = CommandParser(
        prog="penstock",
        description="Amazon Kinesis Data Streams for Python and PySpark, without a JVM connector.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log more, and show the traceback of an error"
    )
    parser.add_argument("--log-json", action="store_true", help="log one JSON document to a line")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules: dict[str, ModuleType] = {}
    for name, path in _COMMANDS.items():
        module = MissingCommand(name) if is_missing(name) else importlib.import_module(path)
        command = subparsers.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
        module.add_arguments(command)
        for each in (command, *(command.subcommands or {}).values()):  # people type `penstock consume -v`
            _add_logging_arguments(each)
        modules[name] = module
    return parser, modules


def command_names() -> tuple[str, ...]:
    """Return the names of the commands; a check compares the documentation with them."""
    return tuple(_COMMANDS)


def _add_logging_arguments(parser: Any) -> None:
    # SUPPRESS: a flag that is missing after the command must not undo the same flag before the command.
    for names in (("-v", "--verbose"), ("--log-json",)):
        parser.add_argument(*names, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes the process's.

    Returns:
        0, or 1 for an error, 2 for wrong usage, 130 when interrupted, 141 when the reader of the output has gone.
    """
    prepare_output()
    if arguments is None:
        sys.excepthook = _print_traceback
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here an error can be handled; at the interpreter's end it could not
    except KeyboardInterrupt:  # before the command began
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader of the output has gone, as in `... | head`
        return EXIT_CLOSED_PIPE
    except OSError as error:
        _drop_output()
        warn(f"penstock: the output cannot be written: {error}")
        return EXIT_ERROR


def _run(arguments: Sequence[str] | None) -> int:
    parser, modules = build_parser()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser.exit(EXIT_USAGE, parser.format_help())
    args = parser.parse_args(words)
    handler = logging.StreamHandler(sys.stderr)
    if args.log_json:
        from penstock.runtime.json_log import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, handlers=[handler])
    if not args.verbose:  # a failed refresh has a traceback there, and its reason is in the error of the call
        logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
        logging.getLogger("botocore.tokens").setLevel(logging.ERROR)  # of a login with an `sso_session`
    try:
        return int(modules[args.command].run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise  # `main` handles it: this OSError is not the command's
    except ModuleNotFoundError as error:
        return _report_error(args, _missing_package_text(args.command, error), EXIT_ERROR, error)
    except UsageError as error:
        flags = getattr(modules[args.command], "OPTION_FLAGS", {})
        return _report_error(args, _with_flags(str(error), flags), EXIT_USAGE, error)
    except NotFound as error:
        return _report_error(
            args, f"{error}{_nearest_stream_question(args, error.resource)}", EXIT_ERROR, error
        )
    except (PenstockError, OSError) as error:
        return _report_error(args, str(error) or type(error).__name__, EXIT_ERROR, error)


def _nearest_stream_question(args: argparse.Namespace, resource: str) -> str:
    """Return a question that names the nearest stream; empty if the missing resource is not a stream, or none is near."""
    kind, _, name = resource.partition(" ")
    known: Sequence[str] = []
    # A file of deliveries names regions and endpoints of its own; the demonstration has no options for them.
    has_one_service = hasattr(args, "region") and getattr(args, "file", None) is None
    if kind == "stream" and has_one_service:
        with contextlib.suppress(PenstockError):  # the question is only for a better message
            known = wiring.open_stream_control(options_of(args)).list_streams()
    return f"; {'' if name in known else did_you_mean(name, known)}".rstrip("; ")


def _drop_output() -> None:
    """Discard the buffered output, so that the interpreter does not write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an error, escaped, since its text may be from outside."""
    for line in "".join(traceback.format_exception(kind, error, trace)).rstrip("\n").split("\n"):
        warn(line)


def _report_error(args: argparse.Namespace, message: str, status: int, error: BaseException) -> int:
    """Print or log an error, with its traceback if `--verbose` is given; return the exit status."""
    if args.log_json:
        logging.getLogger("penstock").error(
            "%s: %s", args.command, message, exc_info=error if args.verbose else None
        )
        return status
    if args.verbose:
        _print_traceback(type(error), error, error.__traceback__)
    warn(f"penstock {args.command}: {message}")
    return status


def _with_flags(message: str, flags: Mapping[str, str]) -> str:
    """Return an error message with the command-line flag in place of each field of an options value."""
    for field, flag in flags.items():
        message = re.sub(rf"(?:option )?\b{field}\b", flag, message).replace(f"{flag}=", f"{flag} ")
    return message


def _missing_package_text(command: str, error: ModuleNotFoundError) -> str:
    if error.name is None:
        return str(error)
    extra = _EXTRAS.get(error.name.partition(".")[0])
    if extra is None:
        return str(error)
    return (
        f"`{command}` needs the package {error.name}, which is not installed: pip install 'penstock[{extra}]'"
    )


if __name__ == "__main__":
    sys.exit(main())
