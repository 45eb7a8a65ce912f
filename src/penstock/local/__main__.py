"""`python -m penstock.local`, for one release: `penstock-local` is the command."""

from __future__ import annotations

import sys

from penstock_local.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
