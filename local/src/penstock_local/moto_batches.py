"""A fix of batch writes of equal items to two tables: moto takes them for one item that is written twice, and refuses them."""

from __future__ import annotations

import logging
from typing import Any

from penstock_local.moto_methods import replace_method

_log = logging.getLogger("penstock_local")


def install_batch_writes() -> bool:
    """Install the fix in this process's moto; a second call changes nothing.

    Returns:
        False if this moto has no place for it: then such a batch is refused.
    """
    try:
        from moto.dynamodb.responses import DynamoHandler

        replace_method(DynamoHandler, "_contains_duplicates", _without_writes)
    except (ImportError, AttributeError):
        _log.info("this moto compares batches in another way: equal items for two tables are refused")
        return False
    return True


def _without_writes(original: Any) -> Any:
    def contains_duplicates(self: Any, keys: list[Any]) -> bool:
        # Writes are given as texts, reads as keys. `moto_rules.check_by_tables` compares the writes of each table.
        is_write = bool(keys) and isinstance(keys[0], str)
        return not is_write and bool(original(self, keys))

    return contains_duplicates
