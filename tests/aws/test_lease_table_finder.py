"""Lease tables are found by their key, and each table is described once."""

import threading

import botocore.exceptions as sdk
import pytest

from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.lease_table_finder import FoundTables, LeaseTableFinder
from penstock.errors import AccessDenied

LEASE_KEY = [("leaseKey", "HASH")]


class Client:
    """DynamoDB with tables by name: their keys, or the code of an error."""

    def __init__(self, **tables):
        self.tables = tables
        self.described = []
        self.threads = []
        self.refusal = None

    def list_tables(self, **arguments):
        after = arguments.get("ExclusiveStartTableName", "")
        if self.refusal is not None:
            raise sdk.ClientError({"Error": {"Code": self.refusal}}, "ListTables")
        names = sorted(name for name in self.tables if name > after)
        page = {"TableNames": names[:2]}
        return page if len(names) <= 2 else {**page, "LastEvaluatedTableName": names[1]}

    def describe_table(self, **arguments):
        self.described.append(arguments["TableName"])
        self.threads.append(threading.current_thread())
        key = self.tables[arguments["TableName"]]
        if isinstance(key, str):
            raise sdk.ClientError({"Error": {"Code": key}}, "DescribeTable")
        return {"Table": {"KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in key]}}


@pytest.fixture
def find(monkeypatch):
    def finder_of(client):
        monkeypatch.setattr(service_calls, "client_for", lambda service, options: client)
        return LeaseTableFinder(AwsOptions(region="eu-west-1")).find

    return finder_of


def test_tables_with_another_key_a_second_key_or_none_any_more_are_no_lease_tables(find):
    client = Client(
        billing=LEASE_KEY,
        carts=[("id", "HASH")],
        deleted="ResourceNotFoundException",
        refused="AccessDeniedException",
        sorted=[*LEASE_KEY, ("at", "RANGE")],
        zones=LEASE_KEY,
    )
    assert find(client)() == FoundTables(("billing", "zones"), 1)
    assert all(thread.daemon for thread in client.threads), "a silent service keeps nobody from ending"


def test_only_new_tables_are_described_and_those_that_have_gone_are_forgotten(find):
    client = Client(a=LEASE_KEY, b=[("id", "HASH")], c="AccessDeniedException")
    again = find(client)
    assert again() == FoundTables(("a",), 1)
    del client.tables["a"], client.tables["c"]
    client.tables["d"] = LEASE_KEY
    assert again() == FoundTables(("d",), 0)
    assert sorted(client.described) == ["a", "b", "c", "d"]


def test_who_may_not_list_tables_is_told(find):
    client = Client(a=LEASE_KEY)
    client.refusal = "AccessDeniedException"
    with pytest.raises(AccessDenied, match="ListTables"):
        find(client)()
