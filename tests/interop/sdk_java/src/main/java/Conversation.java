import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.stream.Collectors;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.core.retry.RetryPolicy;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.ConsumerStatus;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.Record;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;

/** The conversation of tests/interop/test_sdks.py with the default client of the AWS SDK for Java v2. */
public final class Conversation {
    private static final KinesisAsyncClient KINESIS = KinesisAsyncClient.create();
    private static final KinesisAsyncClient ONE_ATTEMPT =
            KinesisAsyncClient.builder().overrideConfiguration(c -> c.retryPolicy(RetryPolicy.none())).build();

    public static void main(String[] args) throws Exception {
        String stream = args[0];
        int batches = Integer.parseInt(args[1]);
        int refusals = Integer.parseInt(args[2]);
        int failures = Integer.parseInt(args[3]);

        KINESIS.createStream(r -> r.streamName(stream).shardCount(2)).join();
        KINESIS.waiter().waitUntilStreamExists(r -> r.streamName(stream)).join();
        boolean isListed = KINESIS.listStreams().join().streamNames().contains(stream);
        List<Shard> shards = KINESIS.listShards(r -> r.streamName(stream)).join().shards();

        int failed = 0;
        for (int batch = 0; batch < batches; batch++) {
            List<PutRecordsRequestEntry> entries = new ArrayList<>();
            for (int i = batch * 500; i < batch * 500 + 500; i++) {
                SdkBytes data = SdkBytes.fromUtf8String((i + ":").repeat(1000).substring(0, 1000));
                entries.add(PutRecordsRequestEntry.builder().partitionKey("key-" + i).data(data).build());
            }
            failed += KINESIS.putRecords(r -> r.streamName(stream).records(entries)).join().failedRecordCount();
        }

        List<String> read = new ArrayList<>();
        for (Shard shard : shards) {
            String iterator = iterator(stream, shard.shardId());
            for (Record record : KINESIS.getRecords(r -> r.shardIterator(iterator)).join().records()) {
                read.add(record.data().asUtf8String());
            }
        }

        String first = iterator(stream, shards.get(0).shardId());
        List<String> refused = new ArrayList<>();
        for (int i = 0; i < refusals; i++) {
            refused.add(refusal(() -> ONE_ATTEMPT.getRecords(r -> r.shardIterator(first)).join()));
        }
        String missing = refusal(() -> KINESIS.describeStreamSummary(r -> r.streamName("missing")).join());
        String again = refusal(() -> KINESIS.createStream(r -> r.streamName(stream).shardCount(1)).join());

        String consumer = consumer(stream);
        List<String> pushed = new ArrayList<>();
        for (Shard shard : shards) {
            push(consumer, shard.shardId(), pushed);
        }
        List<String> failedInStream = new ArrayList<>();
        for (int i = 0; i < failures; i++) {
            failedInStream.add(refusal(() -> push(consumer, shards.get(0).shardId(), new ArrayList<>())));
        }

        System.out.printf(
                "{\"sdk\": \"%s\", \"is_listed\": %s, \"shards\": %d, \"failed\": %d, \"read\": %d, \"digest\": \"%s\", "
                        + "\"missing\": \"%s\", \"again\": \"%s\", \"refused\": [%s], \"pushed\": %d, \"pushed_digest\": \"%s\", "
                        + "\"failures\": [%s]}%n",
                VersionInfo.SDK_VERSION, isListed, shards.size(), failed, read.size(), digest(read), missing, again,
                quoted(refused), pushed.size(), digest(pushed), quoted(failedInStream));
        KINESIS.close();
        ONE_ATTEMPT.close();
    }

    private static String iterator(String stream, String shard) {
        return KINESIS.getShardIterator(
                        r -> r.streamName(stream).shardId(shard).shardIteratorType(ShardIteratorType.TRIM_HORIZON))
                .join()
                .shardIterator();
    }

    private static String consumer(String stream) throws InterruptedException {
        String arn = KINESIS.describeStreamSummary(r -> r.streamName(stream)).join().streamDescriptionSummary().streamARN();
        String consumer = KINESIS.registerStreamConsumer(r -> r.streamARN(arn).consumerName("fan"))
                .join().consumer().consumerARN();
        while (KINESIS.describeStreamConsumer(r -> r.consumerARN(consumer)).join().consumerDescription().consumerStatus()
                != ConsumerStatus.ACTIVE) {
            Thread.sleep(100);
        }
        return consumer;
    }

    /** Adds the data of all events, until the stream of them ends. */
    private static void push(String consumer, String shard, List<String> data) {
        KINESIS.subscribeToShard(
                        r -> r.consumerARN(consumer).shardId(shard)
                                .startingPosition(p -> p.type(ShardIteratorType.TRIM_HORIZON)),
                        SubscribeToShardResponseHandler.builder()
                                .subscriber(event -> event.accept(SubscribeToShardResponseHandler.Visitor.builder()
                                        .onSubscribeToShardEvent(e -> e.records().forEach(r -> data.add(r.data().asUtf8String())))
                                        .build()))
                                .build())
                .join();
    }

    private static String quoted(List<String> names) {
        return names.stream().map(name -> '"' + name + '"').collect(Collectors.joining(", "));
    }

    private static String refusal(Runnable call) {
        try {
            call.run();
            return "none";
        } catch (CompletionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    private static String digest(List<String> read) throws Exception {
        byte[] joined = read.stream().sorted().collect(Collectors.joining("\n")).getBytes("UTF-8");
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(joined));
    }
}
