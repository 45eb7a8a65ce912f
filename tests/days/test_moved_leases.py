"""An application keeps its leases elsewhere from today on: it was in a DynamoDB table, and now it is in a folder."""

import json

from user_programs import CONSUMER, Orders, once

# As its leases moved there: `billing` is what Java workers had too, and the folder is on the one machine that is left.
IN_FOLDER = CONSUMER.replace(
    'starting_position="TRIM_HORIZON")',
    'starting_position=open("positions.json").read(),\n'
    '             connection={"lease_table_name": "file://" + sys.argv[1]})',
).replace("import logging", "import logging, sys")


def test_an_application_moves_from_a_table_to_a_folder(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    old = programs.start(CONSUMER, name="in-a-table")
    programs.wait_for(orders)
    client = local_kinesis.client()

    def is_split():
        summary = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        return summary["OpenShardCount"] == 3

    client.split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    orders.put_until(is_split, "the split")
    orders.put(100)
    programs.wait_for(orders)
    assert old.terminate() == 0

    shown = programs.penstock("leases", "billing", "--json", name="leases")
    programs.started.remove(shown)  # it prints no orders
    assert shown.wait() == 0
    leases = json.loads("\n".join(shown.lines()))["leases"]
    positions = {lease["shard"]: lease["checkpoint"] for lease in leases}
    (tmp_path / "positions.json").write_text(json.dumps(positions), encoding="utf-8")
    orders.put(100)
    new = programs.start(IN_FOLDER, str(tmp_path / "leases"), name="in-a-folder")
    programs.wait_for(orders)
    assert new.terminate() == 0
    assert programs.printed() == once(orders)
    again = programs.start(IN_FOLDER, str(tmp_path / "leases"), name="in-a-folder-again")
    orders.put(100)
    programs.wait_for(orders)
    assert again.terminate() == 0
    assert programs.printed() == once(orders)
