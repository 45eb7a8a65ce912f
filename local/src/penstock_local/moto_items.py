"""A fix that stores items of many attributes in a time that grows with their number, not with its square.

moto adds up the whole item each time that one attribute is set. Here a wide item is added up only when what
was set since the last time could have made it too large.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock_local.moto_methods import replace_method

_NARROW = 64
_ROOM_BYTES = 405_000

_log = logging.getLogger("penstock_local")


def install_item_sizes() -> bool:
    """Install the fix in this process's moto; a second call changes nothing.

    Returns:
        False if this moto has no place for it: then items of many attributes are slow.
    """
    try:
        from moto.dynamodb.models.dynamo_type import DynamoType, LimitedSizeDict
        from moto.dynamodb.models.utilities import bytesize
    except ImportError:
        _log.info("this moto keeps items in another way: items of thousands of attributes are slow")
        return False

    def size_of(value: Any) -> int:
        return int(value.size() if type(value) is DynamoType else bytesize(str(value)))

    def with_room(original: Any) -> Any:
        def set_item(self: Any, key: str, value: Any) -> None:
            added = bytesize(key) + size_of(value)
            room = getattr(self, "room_bytes", 0) - added
            if len(self) < _NARROW or room < 0:
                original(self, key, value)
                room = _ROOM_BYTES - sum(bytesize(name) + size_of(item) for name, item in self.items())
            else:
                dict.__setitem__(self, key, value)
            self.room_bytes = room

        return set_item

    replace_method(LimitedSizeDict, "__setitem__", with_room)
    return True
