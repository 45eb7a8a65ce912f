"""`penstock` and `python -m penstock`."""

import signal
import sys


def run() -> int:
    """Run the command line; Ctrl-C during its imports ends the process at once, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # the shell has not switched Ctrl-C off
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
