import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.processor.FormerStreamsLeasesDeletionStrategy;
import software.amazon.kinesis.processor.MultiStreamTracker;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.ShardRecordProcessorFactory;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.RetrievalConfig;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * A worker of the KCL with its default clients. It stops in order when its standard input ends.
 *
 * <p>It prints a line when a shard begins (the position that it was told) and one for each record, before the checkpoint
 * behind it. With a fourth argument it checkpoints at the record of that number in its shard and is gone, as if killed.
 * -Dclient.version=... is the KCL 3 setting of that name, -Dfailover.ms=... the failover time.
 * It polls; with -Dretrieval=default it reads by enhanced fan-out. Several streams are given as account:stream:epoch, with
 * commas between them; then a shard is printed behind its stream.
 */
public final class Worker {
    private static long stopAfter = Long.MAX_VALUE;

    public static void main(String[] args) throws Exception {
        String stream = args[0];
        String application = args[1];
        String worker = args[2];
        if (args.length > 3) {
            stopAfter = Long.parseLong(args[3]);
        }
        KinesisAsyncClient kinesis = KinesisClientUtil.createKinesisAsyncClient(KinesisAsyncClient.builder());
        InitialPositionInStreamExtended start =
                InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON);
        ConfigsBuilder configs = new ConfigsBuilder(
                stream.contains(":") ? new Streams(stream, start) : new SingleStreamTracker(stream, start),
                application, kinesis, DynamoDbAsyncClient.create(), CloudWatchAsyncClient.create(), worker, new Printers());
        RetrievalConfig retrieval = configs.retrievalConfig();
        if (!"default".equals(System.getProperty("retrieval"))) {
            PollingConfig polling = new PollingConfig(kinesis);
            if (!stream.contains(":")) {
                polling.streamName(stream);
            }
            polling.idleTimeBetweenReadsInMillis(500);
            retrieval.retrievalSpecificConfig(polling);
        }
        Scheduler scheduler = new Scheduler(
                configs.checkpointConfig(),
                coordinator(configs),
                leases(configs),
                configs.lifecycleConfig(),
                configs.metricsConfig(),
                configs.processorConfig(),
                retrieval);
        Thread running = new Thread(scheduler, "scheduler");
        running.start();
        while (System.in.read() >= 0) {
            // whoever started this worker still needs it
        }
        try {
            scheduler.startGracefulShutdown().get(10, TimeUnit.SECONDS);
        } catch (TimeoutException error) {
            // the KCL waits for the lease of a shard that has ended until that is cleaned up, minutes later
            scheduler.shutdown();
        }
        running.join(30_000);
        System.out.println(running.isAlive() ? "runs on" : "stopped");
        System.exit(0);
    }

    /** KCL 2 has no client versions, so they are set by name. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static CoordinatorConfig coordinator(ConfigsBuilder configs) throws ReflectiveOperationException {
        CoordinatorConfig config =
                configs.coordinatorConfig().parentShardPollIntervalMillis(1000).shardConsumerDispatchPollIntervalMillis(200);
        String version = System.getProperty("client.version");
        if (version != null) {
            Class type = Class.forName(CoordinatorConfig.class.getName() + "$ClientVersionConfig");
            CoordinatorConfig.class.getMethod("clientVersionConfig", type).invoke(config, Enum.valueOf(type, version));
        }
        return config;
    }

    /** A leader of KCL 3 balances in each of its rounds, and is replaced after 20 s; by default every third, and 120 s. */
    private static LeaseManagementConfig leases(ConfigsBuilder configs) throws ReflectiveOperationException {
        LeaseManagementConfig config =
                configs.leaseManagementConfig().failoverTimeMillis(Long.getLong("failover.ms", 5000)).shardSyncIntervalMillis(5000);
        if (Boolean.getBoolean("quick.leader")) {
            Object assignment = config.getClass().getMethod("workerUtilizationAwareAssignmentConfig").invoke(config);
            assignment.getClass().getMethod("varianceBalancingFrequency", int.class).invoke(assignment, 1);
            set(config, "dynamoDbLockBasedLeaderLeaseDurationInMillis", 20_000);
            set(config, "dynamoDbLockBasedLeaderHeartbeatPeriodInMillis", 5_000);
        }
        return config;
    }

    private static void set(Object config, String name, long value) throws ReflectiveOperationException {
        config.getClass().getMethod(name, long.class).invoke(config, value);
    }

    private static void print(CharSequence lines) {
        synchronized (System.out) {
            System.out.print(lines);
            System.out.flush();
        }
    }

    private static final class Streams implements MultiStreamTracker {
        private final List<StreamConfig> configs;

        Streams(String streams, InitialPositionInStreamExtended start) {
            configs = Stream.of(streams.split(","))
                    .map(each -> new StreamConfig(StreamIdentifier.multiStreamInstance(each), start))
                    .collect(Collectors.toList());
        }

        @Override
        public List<StreamConfig> streamConfigList() {
            return configs;
        }

        @Override
        public FormerStreamsLeasesDeletionStrategy formerStreamsLeasesDeletionStrategy() {
            return new FormerStreamsLeasesDeletionStrategy.NoLeaseDeletionStrategy();
        }
    }

    private static final class Printers implements ShardRecordProcessorFactory {
        @Override
        public ShardRecordProcessor shardRecordProcessor() {
            return new Printer("");
        }

        @Override
        public ShardRecordProcessor shardRecordProcessor(StreamIdentifier stream) {
            return new Printer(stream.streamCreationEpochOptional().isPresent() ? stream.serialize() + ':' : "");
        }
    }

    private static final class Printer implements ShardRecordProcessor {
        private final String stream;
        private String shard;
        private long count;

        Printer(String stream) {
            this.stream = stream;
        }

        @Override
        public void initialize(InitializationInput input) {
            shard = stream + input.shardId();
            ExtendedSequenceNumber position = input.extendedSequenceNumber();
            print("begin " + shard + ' ' + position.sequenceNumber() + ' ' + position.subSequenceNumber() + '\n');
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            StringBuilder lines = new StringBuilder();
            for (KinesisClientRecord record : input.records()) {
                String data = StandardCharsets.UTF_8.decode(record.data()).toString();
                lines.append("record ").append(shard);
                lines.append(' ').append(record.sequenceNumber()).append(' ').append(record.subSequenceNumber());
                lines.append(' ').append(record.partitionKey()).append(' ').append(data).append('\n');
                count++;
                if (count == stopAfter) {
                    print(lines);
                    stopAt(record, input.checkpointer());
                }
            }
            print(lines);
            checkpoint(input.checkpointer());
        }

        private static void stopAt(KinesisClientRecord record, RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint(record.sequenceNumber(), record.subSequenceNumber());
            } catch (ShutdownException | InvalidStateException error) {
                throw new IllegalStateException(error);
            }
            Runtime.getRuntime().halt(0);
        }

        @Override
        public void leaseLost(LeaseLostInput input) {
            // the one who has it now goes on from the last checkpoint
        }

        @Override
        public void shardEnded(ShardEndedInput input) {
            checkpoint(input.checkpointer());
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {
            checkpoint(input.checkpointer());
        }

        private static void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (ShutdownException | InvalidStateException error) {
                System.err.println("no checkpoint: " + error);
            }
        }
    }
}
