"""The conversation of tests/interop/test_sdks.py with the AWS CLI, a process for each call.

`python conversation.py AWS STREAM BATCHES REFUSALS`, where AWS is the command.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ENDPOINT_SINCE = (2, 13)
"""Version 2 reads AWS_ENDPOINT_URL since then."""
CODE = re.compile(r"An error occurred \((\w+)\)")

aws, stream, batches, refusals = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

version = subprocess.run([aws, "--version"], capture_output=True, text=True, check=True).stdout.split()[0]
numbers = tuple(int(part) for part in version.removeprefix("aws-cli/").split("."))
where = ["--endpoint-url", os.environ["AWS_ENDPOINT_URL"]] if (2,) < numbers < ENDPOINT_SINCE else []


def call(operation: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [aws, "kinesis", operation, "--output", "json", *where, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


def answer(operation: str, *arguments: str) -> dict:
    done = call(operation, *arguments)
    if done.returncode != 0:
        raise SystemExit(f"{operation}: {done.stderr}")
    return json.loads(done.stdout or "{}")


def refusal(operation: str, *arguments: str) -> str:
    found = CODE.search(call(operation, *arguments, AWS_MAX_ATTEMPTS="1").stderr)
    return found[1] if found else "none"


# Version 2 takes data as Base64 unless it is told otherwise; version 1 does not know the setting.
config = Path.home() / ".aws" / "config"
config.parent.mkdir(exist_ok=True)
config.write_text("[default]\ncli_binary_format = raw-in-base64-out\n")

answer("create-stream", "--stream-name", stream, "--shard-count", "2")
answer("wait", "stream-exists", "--stream-name", stream)
streams = answer("list-streams")["StreamNames"]
shards = [shard["ShardId"] for shard in answer("list-shards", "--stream-name", stream)["Shards"]]

failed = 0
for batch in range(batches):
    records = [
        {"PartitionKey": f"key-{i}", "Data": (f"{i}:" * 1000)[:1000]}
        for i in range(batch * 500, batch * 500 + 500)
    ]
    request = Path.home() / "request.json"
    request.write_text(json.dumps({"StreamName": stream, "Records": records}))
    failed += answer("put-records", "--cli-input-json", f"file://{request}")["FailedRecordCount"]


def iterator(shard: str) -> str:
    ask = ("--stream-name", stream, "--shard-id", shard, "--shard-iterator-type", "TRIM_HORIZON")
    return answer("get-shard-iterator", *ask)["ShardIterator"]


read = []
for shard in shards:
    page = answer("get-records", "--shard-iterator", iterator(shard))["Records"]
    read += [base64.b64decode(record["Data"]).decode() for record in page]

first = iterator(shards[0])
refused = [refusal("get-records", "--shard-iterator", first) for _ in range(refusals)]
missing = refusal("describe-stream-summary", "--stream-name", "missing")
again = refusal("create-stream", "--stream-name", stream, "--shard-count", "1")
print(
    json.dumps(
        {
            "sdk": version,
            "is_listed": stream in streams,
            "shards": len(shards),
            "failed": failed,
            "read": len(read),
            "digest": hashlib.sha256("\n".join(sorted(read)).encode()).hexdigest(),
            "missing": missing,
            "again": again,
            "refused": refused,
        }
    )
)
