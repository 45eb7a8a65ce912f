"""Find lease tables among the DynamoDB tables of a region, by their key."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Struct

from penstock.aws.aws_options import AwsOptions
from penstock.aws.keyed_table import has_key
from penstock.aws.lease_codec import KEY
from penstock.aws.service_calls import call_operation, pages_of
from penstock.errors import AccessDenied, NotFound
from penstock.runtime.threads import map_on_daemons

_PAGING: Final = ("LastEvaluatedTableName", "ExclusiveStartTableName")
_THREADS: Final = 8


class FoundTables(Struct, frozen=True):
    """Tables that look like lease tables.

    Args:
        names: The tables' names, sorted.
        refused_count: Tables that we may not describe.
    """

    names: tuple[str, ...]
    refused_count: int


class LeaseTableFinder:
    """Finds tables whose only key is `leaseKey`. A table is described once, since its key never changes."""

    def __init__(self, options: AwsOptions) -> None:
        self._options = options
        # By table: whether it is a lease table; None: we may not describe it.
        self._answers: dict[str, bool | None] = {}

    def find(self) -> FoundTables:
        """List the region's tables and describe those that are new.

        Raises:
            ServiceError: The tables cannot be listed.
        """
        pages = pages_of(partial(call_operation, "dynamodb", "ListTables", "", self._options), _PAGING)
        names = sorted(name for page in pages for name in page["TableNames"])
        new_names = [name for name in names if name not in self._answers]
        answers = map_on_daemons("penstock-tables", _THREADS, self._is_lease_table, new_names)
        self._answers |= zip(new_names, answers, strict=True)
        self._answers = {name: self._answers[name] for name in names}
        return FoundTables(
            tuple(name for name, is_lease_table in self._answers.items() if is_lease_table),
            sum(is_lease_table is None for is_lease_table in self._answers.values()),
        )

    def _is_lease_table(self, name: str) -> bool | None:
        try:
            answer = call_operation(
                "dynamodb", "DescribeTable", f"table {name}", self._options, TableName=name
            )
        except AccessDenied:
            return None
        except NotFound:  # deleted a moment ago
            return False
        return has_key(answer["Table"]["KeySchema"], KEY)
