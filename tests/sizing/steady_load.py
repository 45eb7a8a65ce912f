"""Load on a stream of the embedded Kinesis whose clock a test moves."""


def write(kinesis, stream, keys, size, seconds):
    """Put a record of each key in each second."""
    client = kinesis.client("kinesis")
    for _ in range(seconds):
        for at in range(0, len(keys), 500):
            client.put_records(
                StreamName=stream,
                Records=[{"Data": b"x" * size, "PartitionKey": key} for key in keys[at : at + 500]],
            )
        kinesis.clock.advance(1)
