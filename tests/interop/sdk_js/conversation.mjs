// The conversation of tests/interop/test_sdks.py with the default client of the AWS SDK for JavaScript v3.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import {
  CreateStreamCommand,
  DescribeStreamConsumerCommand,
  DescribeStreamSummaryCommand,
  GetRecordsCommand,
  GetShardIteratorCommand,
  KinesisClient,
  ListShardsCommand,
  ListStreamsCommand,
  PutRecordsCommand,
  RegisterStreamConsumerCommand,
  SubscribeToShardCommand,
  waitUntilStreamExists,
} from "@aws-sdk/client-kinesis";

const [StreamName, batches, refusals, failures] = process.argv.slice(2);
const kinesis = new KinesisClient({});
const oneAttempt = new KinesisClient({ maxAttempts: 1 });

await kinesis.send(new CreateStreamCommand({ StreamName, ShardCount: 2 }));
await waitUntilStreamExists({ client: kinesis, maxWaitTime: 20, minDelay: 1 }, { StreamName });
const streams = (await kinesis.send(new ListStreamsCommand({}))).StreamNames;
const shards = (await kinesis.send(new ListShardsCommand({ StreamName }))).Shards;

let failed = 0;
for (let batch = 0; batch < Number(batches); batch++) {
  const Records = [];
  for (let i = batch * 500; i < batch * 500 + 500; i++) {
    Records.push({ PartitionKey: `key-${i}`, Data: Buffer.from(`${i}:`.repeat(1000).slice(0, 1000)) });
  }
  failed += (await kinesis.send(new PutRecordsCommand({ StreamName, Records }))).FailedRecordCount ?? 0;
}

async function iterator(ShardId) {
  const ask = { StreamName, ShardId, ShardIteratorType: "TRIM_HORIZON" };
  return (await kinesis.send(new GetShardIteratorCommand(ask))).ShardIterator;
}

async function refusal(call) {
  try {
    await call();
    return "none";
  } catch (error) {
    return error.constructor.name === "KinesisServiceException" ? error.name : error.constructor.name;
  }
}

const read = [];
for (const { ShardId } of shards) {
  const ShardIterator = await iterator(ShardId);
  const page = await kinesis.send(new GetRecordsCommand({ ShardIterator }));
  read.push(...page.Records.map((record) => Buffer.from(record.Data).toString()));
}

const ShardIterator = await iterator(shards[0].ShardId);
const refused = [];
for (let i = 0; i < Number(refusals); i++) {
  refused.push(await refusal(() => oneAttempt.send(new GetRecordsCommand({ ShardIterator }))));
}
const missing = await refusal(() => kinesis.send(new DescribeStreamSummaryCommand({ StreamName: "missing" })));
const again = await refusal(() => kinesis.send(new CreateStreamCommand({ StreamName, ShardCount: 1 })));

const { StreamARN } = (await kinesis.send(new DescribeStreamSummaryCommand({ StreamName }))).StreamDescriptionSummary;
const ask = { StreamARN, ConsumerName: "fan" };
const { ConsumerARN } = (await kinesis.send(new RegisterStreamConsumerCommand(ask))).Consumer;
const describe = new DescribeStreamConsumerCommand({ ConsumerARN });
while ((await kinesis.send(describe)).ConsumerDescription.ConsumerStatus !== "ACTIVE") {
  await new Promise((resolve) => setTimeout(resolve, 100));
}

// Returns the data of all events, when the stream of them has ended.
async function push(ShardId) {
  const StartingPosition = { Type: "TRIM_HORIZON" };
  const answer = await kinesis.send(new SubscribeToShardCommand({ ConsumerARN, ShardId, StartingPosition }));
  const data = [];
  for await (const { SubscribeToShardEvent: event } of answer.EventStream) {
    data.push(...event.Records.map((record) => Buffer.from(record.Data).toString()));
  }
  return data;
}

const pushed = [];
for (const { ShardId } of shards) {
  pushed.push(...(await push(ShardId)));
}
const failedInStream = [];
for (let i = 0; i < Number(failures); i++) {
  failedInStream.push(await refusal(() => push(shards[0].ShardId)));
}

console.log(
  JSON.stringify({
    sdk: createRequire(import.meta.url)("@aws-sdk/client-kinesis/package.json").version,
    is_listed: streams.includes(StreamName),
    shards: shards.length,
    failed,
    read: read.length,
    digest: createHash("sha256").update(read.sort().join("\n")).digest("hex"),
    missing,
    again,
    refused,
    pushed: pushed.length,
    pushed_digest: createHash("sha256").update(pushed.sort().join("\n")).digest("hex"),
    failures: failedInStream,
  }),
);
kinesis.destroy();
oneAttempt.destroy();
