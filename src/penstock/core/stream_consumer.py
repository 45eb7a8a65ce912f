"""The name of a stream's registered consumer."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import OptionError

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def check_consumer_name(name: str, option: str) -> None:
    """Refuse a name that no registered consumer can have.

    Args:
        option: The option that named it, for the message.

    Raises:
        OptionError: The name is empty, too long, or has characters that are not allowed.

    Source:
        Kinesis API reference, RegisterStreamConsumer.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{option}={name!r}: the name of a registered consumer has 1 to 128 letters, digits, '_', '.' and '-'; give one "
            f"as {option}"
        )
