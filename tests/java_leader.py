"""The leader of a native KCL 3 fleet, played by a test: the rows that it keeps beside the leases, and what it writes on them."""

import threading
import time

DEADLINE_S = 120.0


class JavaLeader:
    """The lease table of an application, and a Java worker that leads it for the next hour.

    Args:
        server: The embedded server.
        name: Of the table, which is made.
        version: The state of the fleet.
    """

    def __init__(self, server, name, version="CLIENT_VERSION_3X"):
        self.name = name
        self.dynamo = server.client("dynamodb")
        self.dynamo.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "LeaseOwnerToLeaseKeyIndex",
                    "KeySchema": [
                        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        self.put("Migration3.0", "CLIENT_VERSION_MIGRATION", cv={"S": version})
        lock = {"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "1"}}
        self.put("Leader", "LEADER", leaseDuration={"S": "3600000"}, **lock)
        samples, limits = {"C": {"L": [{"N": "7"}]}}, {"C": {"L": [{"N": "100"}]}}
        lut = {"N": str(int(time.time()) + 3600)}
        self.put("java", "WORKER_METRIC_STATS", lut=lut, sts={"M": samples}, opr={"M": limits})

    def put(self, key, entity, **row):
        item = {"leaseKey": {"S": key}, "entityType": {"S": entity}, **row}
        self.dynamo.put_item(TableName=self.name, Item=item)

    def rows(self):
        items = self.dynamo.scan(TableName=self.name, ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items}

    def update(self, key, expression, **values):
        self.dynamo.update_item(
            TableName=self.name,
            Key={"leaseKey": {"S": key}},
            UpdateExpression=expression,
            ExpressionAttributeValues={f":{name}": value for name, value in values.items()},
        )

    def assign(self, key, worker):
        """Give a lease that nobody has to a worker."""
        one = {"N": "1"}
        self.update(key, "SET leaseOwner = :owner ADD leaseCounter :one", owner={"S": worker}, one=one)

    def ask_back(self, key, worker):
        """Begin to hand a worker's lease over to the leader itself."""
        expression = "SET leaseOwner = :java, checkpointOwner = :reader"
        self.update(key, expression, java={"S": "java"}, reader={"S": worker})

    def wait(self, condition, what):
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited for {what}: {self.rows()}"
            threading.Event().wait(0.05)
