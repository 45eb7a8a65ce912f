import com.google.common.util.concurrent.ListenableFuture;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.KinesisProducerConfiguration;
import software.amazon.kinesis.producer.UserRecordResult;

/** Puts records with the KPL and its daemon, which speaks TLS only; prints how many were acknowledged. */
public final class Produce {
    public static void main(String[] args) throws Exception {
        String stream = args[0];
        String host = args[1];
        long port = Long.parseLong(args[2]);
        int count = Integer.parseInt(args[3]);
        KinesisProducer producer = new KinesisProducer(new KinesisProducerConfiguration()
                .setRegion("us-east-1")
                .setKinesisEndpoint(host)
                .setKinesisPort(port)
                .setCloudwatchEndpoint(host)
                .setCloudwatchPort(port)
                .setStsEndpoint(host)
                .setStsPort(port)
                .setVerifyCertificate(false)
                // long enough to fill aggregates; the flush below sends the rest
                .setRecordMaxBufferedTime(2000));
        // it aggregates when it knows the shards: after its first record
        producer.addUserRecord(stream, "first", data("first")).get();
        List<ListenableFuture<UserRecordResult>> results = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            results.add(producer.addUserRecord(stream, "key-" + i % 20, data(Integer.toString(i / 20))));
        }
        producer.flushSync();
        int acknowledged = 0;
        for (ListenableFuture<UserRecordResult> result : results) {
            acknowledged += result.get().isSuccessful() ? 1 : 0;
        }
        System.out.println(acknowledged);
        producer.destroy();
        System.exit(0);
    }

    private static ByteBuffer data(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }
}
