"""The names that a lease table can have. Pure."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from penstock.core.keyword_options import check_unicode
from penstock.errors import OptionError

_DYNAMODB: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}|arn:[^:]*:dynamodb:.+")


def check_lease_table_name(name: str) -> None:
    """Check that a lease table can have a name: that of a DynamoDB table, `s3://bucket/prefix` or `file:///folder`.

    Raises:
        OptionError: No lease table can have this name.
    """
    scheme, is_url, path = name.partition("://")
    if not is_url:
        _check_dynamodb(name)
    elif scheme == "s3":
        check_unicode("lease table", name)
        bucket, _, prefix = path.partition("/")
        if not bucket or not prefix.strip("/"):
            raise OptionError(f"lease table {name}: expected s3://bucket/prefix")
    elif scheme == "file":
        _check_folder(name, path)
    else:
        raise OptionError(
            f"lease table {name}: expected the name of a DynamoDB table, s3://bucket/prefix or file:///folder"
        )


def _check_dynamodb(name: str) -> None:
    if _DYNAMODB.fullmatch(name):
        return
    if "/" in name:
        raise OptionError(
            f"lease table {name!r}: expected the name of a DynamoDB table, or s3://bucket/prefix, or file:///folder"
        )
    raise OptionError(
        f"lease table {name!r}: a table of DynamoDB has a name of 3 to 255 letters, digits, '_', '-' and '.'. It is the "
        "application's name unless another one is given (in Python lease_table_name, in Spark leaseTable): choose another application"
    )


def _check_folder(name: str, folder: str) -> None:
    if not folder.startswith("/"):
        raise OptionError(f"the folder of lease table {name} must be absolute: file:///path/to/folder")
    if "\0" in folder:
        raise OptionError(f"lease table {name!r}: a path has no NUL character")
    if not posixpath.normpath(folder).strip("/"):
        raise OptionError(
            f"lease table {name} is the root of the file system: name a folder in it, file:///path/to/folder"
        )
