"""The calls of the AWS Glue Schema Registry: what is sent, what the answers become, and what is retried."""

import uuid

import pytest
from botocore.session import Session
from botocore.stub import Stubber

from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.glue_schema_registry import GlueSchemaRegistry
from penstock.errors import AccessDenied, Rejected, ResourceBusy, Throttled, UnsupportedSchema
from penstock.ports.schema_registry import (
    Compatibility,
    DataFormat,
    RegisteredVersion,
    SchemaVersion,
    VersionStatus,
)

ID = uuid.UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
ARN = "arn:aws:glue:eu-west-1:123456789012:schema/shop/orders"
SCHEMA_ID = {"RegistryName": "shop", "SchemaName": "orders"}
VERSION = {
    "SchemaVersionId": str(ID),
    "SchemaDefinition": '"long"',
    "DataFormat": "AVRO",
    "SchemaArn": ARN,
    "VersionNumber": 3,
    "Status": "AVAILABLE",
    "CreatedTime": "2026-01-02T03:04:05.678Z",
}


@pytest.fixture(scope="module")
def client():
    return Session().create_client(
        "glue", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="s"
    )


@pytest.fixture
def stub(client, monkeypatch):
    monkeypatch.setattr(service_calls, "client_for", lambda service, options: client)
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


@pytest.fixture
def registry():
    options = AwsOptions(region="eu-west-1", attempts_max=2, retry_base_s=0.001, retry_cap_s=0.001)
    return GlueSchemaRegistry(options, "shop")


def refuse(stub, method, code, status=400):
    stub.add_client_error(method, code, "why", http_status_code=status)


def test_a_version_is_fetched_by_its_id(stub, registry):
    stub.add_response("get_schema_version", VERSION, {"SchemaVersionId": str(ID)})
    expected = SchemaVersion(ID, "orders", DataFormat.AVRO, '"long"', VersionStatus.AVAILABLE)
    assert registry.fetch_version(ID) == expected


def test_the_latest_version_is_fetched_by_the_schemas_name(stub, registry):
    asked = {"SchemaId": SCHEMA_ID, "SchemaVersionNumber": {"LatestVersion": True}}
    stub.add_response("get_schema_version", VERSION, asked)
    found = registry.fetch_latest("orders")
    assert found is not None
    assert found.version_id == ID


def test_a_version_is_found_by_its_definition(stub, registry):
    answer = {name: VERSION[name] for name in ("SchemaVersionId", "SchemaArn", "DataFormat", "CreatedTime")}
    asked = {"SchemaId": SCHEMA_ID, "SchemaDefinition": '"long"'}
    stub.add_response("get_schema_by_definition", {**answer, "Status": "PENDING"}, asked)
    expected = RegisteredVersion(ID, VersionStatus.PENDING, DataFormat.AVRO)
    assert registry.find_version("orders", '"long"') == expected


def test_a_schema_is_created_with_its_first_version(stub, registry):
    asked = {
        "RegistryId": {"RegistryName": "shop"},
        "SchemaName": "orders",
        "DataFormat": "JSON",
        "Compatibility": "FULL_ALL",
        "SchemaDefinition": "{}",
    }
    answer = {"SchemaVersionId": str(ID), "SchemaVersionStatus": "AVAILABLE", "SchemaArn": ARN}
    stub.add_response("create_schema", answer, asked)
    created = registry.create_schema("orders", DataFormat.JSON, "{}", Compatibility.FULL_ALL)
    assert created == RegisteredVersion(ID, VersionStatus.AVAILABLE, DataFormat.JSON)


def test_a_version_is_registered(stub, registry):
    asked = {"SchemaId": SCHEMA_ID, "SchemaDefinition": '"long"'}
    answer = {"SchemaVersionId": str(ID), "VersionNumber": 4, "Status": "PENDING"}
    stub.add_response("register_schema_version", answer, asked)
    assert registry.register_version("orders", '"long"') == RegisteredVersion(ID, VersionStatus.PENDING)


def test_what_is_not_there_or_is_there_already_is_none(stub, registry):
    for method in (
        "get_schema_version",
        "get_schema_version",
        "get_schema_by_definition",
        "register_schema_version",
    ):
        refuse(stub, method, "EntityNotFoundException")
    assert registry.fetch_version(ID) is None
    assert registry.fetch_latest("orders") is None
    assert registry.find_version("orders", "{}") is None
    assert registry.register_version("orders", "{}") is None
    refuse(stub, "create_schema", "AlreadyExistsException")
    assert registry.create_schema("orders", DataFormat.JSON, "{}", Compatibility.NONE) is None


def test_a_call_is_retried_while_that_can_help(stub, registry):
    refuse(stub, "get_schema_version", "ThrottlingException")
    stub.add_response("get_schema_version", VERSION)
    assert registry.fetch_version(ID) is not None
    # Registering twice returns the first version, so a call without an answer may be repeated.
    refuse(stub, "register_schema_version", "InternalServiceException", 500)
    answer = {"SchemaVersionId": str(ID), "VersionNumber": 4, "Status": "AVAILABLE"}
    stub.add_response("register_schema_version", answer)
    assert registry.register_version("orders", "{}") is not None
    # Another producer registers at the same moment.
    refuse(stub, "register_schema_version", "ConcurrentModificationException")
    stub.add_response("register_schema_version", answer)
    assert registry.register_version("orders", "{}") is not None
    for _ in range(2):
        refuse(stub, "register_schema_version", "ConcurrentModificationException")
    with pytest.raises(ResourceBusy, match="RegisterSchemaVersion on schema orders"):
        registry.register_version("orders", "{}")
    for _ in range(2):
        refuse(stub, "get_schema_version", "ThrottlingException")
    with pytest.raises(Throttled, match=f"GetSchemaVersion on schema version {ID}"):
        registry.fetch_version(ID)


def test_what_cannot_help_is_an_error_at_once(stub, registry):
    refuse(stub, "get_schema_version", "AccessDeniedException")
    with pytest.raises(AccessDenied, match=f"GetSchemaVersion on schema version {ID}.*check the credentials"):
        registry.fetch_version(ID)
    refuse(stub, "create_schema", "InvalidInputException")
    with pytest.raises(Rejected, match="CreateSchema on schema orders of registry shop in eu-west-1"):
        registry.create_schema("orders", DataFormat.AVRO, "{", Compatibility.NONE)


def test_equal_values_are_the_same_registry(registry):
    assert hash(registry) == hash(GlueSchemaRegistry(registry.options, "shop"))
    assert registry == GlueSchemaRegistry(registry.options, "shop")


@pytest.mark.parametrize(
    ("member", "message"), [("DataFormat", "DataFormat THRIFT"), ("Status", "VersionStatus THRIFT")]
)
def test_a_word_that_the_service_may_add_is_named(stub, registry, member, message):
    stub.add_response("get_schema_version", {**VERSION, member: "THRIFT"})
    with pytest.raises(UnsupportedSchema, match=f"{message}; known are A"):
        registry.fetch_version(ID)
