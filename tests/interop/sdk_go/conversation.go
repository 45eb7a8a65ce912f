// The conversation of tests/interop/test_sdks.py with the default client of the AWS SDK for Go v2.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// readOnlyBodies lets request bodies only be read.
//
// The SDK closes a request's body when the answer is there. The body has a WriteTo that answers io.EOF from then on, and
// net/http, which looks behind the last byte of a body, takes that for a failed write and closes the connection. A server on
// the same machine answers before net/http has looked; a Read that ends is no failure.
func readOnlyBodies(stack *middleware.Stack) error {
	return stack.Build.Add(middleware.BuildMiddlewareFunc("ReadOnlyBodies", func(
		ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler,
	) (middleware.BuildOutput, middleware.Metadata, error) {
		request := in.Request.(*smithyhttp.Request)
		if body, ok := request.GetStream().(io.ReadSeeker); ok {
			var err error
			if in.Request, err = request.SetStream(struct{ io.ReadSeeker }{body}); err != nil {
				return middleware.BuildOutput{}, middleware.Metadata{}, err
			}
		}
		return next.HandleBuild(ctx, in)
	}), middleware.After)
}

func main() {
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx, config.WithAPIOptions([]func(*middleware.Stack) error{readOnlyBodies}))
	check(err)
	client := kinesis.NewFromConfig(settings)
	oneAttempt := kinesis.NewFromConfig(settings, func(o *kinesis.Options) { o.RetryMaxAttempts = 1 })
	stream := aws.String(os.Args[1])
	batches, _ := strconv.Atoi(os.Args[2])
	refusals, _ := strconv.Atoi(os.Args[3])
	failures, _ := strconv.Atoi(os.Args[4])

	_, err = client.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: stream, ShardCount: aws.Int32(2)})
	check(err)
	waiter := kinesis.NewStreamExistsWaiter(client, func(o *kinesis.StreamExistsWaiterOptions) {
		o.MinDelay = 100 * time.Millisecond
	})
	check(waiter.Wait(ctx, &kinesis.DescribeStreamInput{StreamName: stream}, 20*time.Second))
	streams, err := client.ListStreams(ctx, &kinesis.ListStreamsInput{})
	check(err)
	isListed := false
	for _, name := range streams.StreamNames {
		isListed = isListed || name == *stream
	}
	shards, err := client.ListShards(ctx, &kinesis.ListShardsInput{StreamName: stream})
	check(err)

	failed := int32(0)
	for batch := 0; batch < batches; batch++ {
		var entries []types.PutRecordsRequestEntry
		for i := batch * 500; i < batch*500+500; i++ {
			data := strings.Repeat(fmt.Sprintf("%d:", i), 1000)[:1000]
			entries = append(entries, types.PutRecordsRequestEntry{
				PartitionKey: aws.String(fmt.Sprintf("key-%d", i)), Data: []byte(data),
			})
		}
		answer, err := client.PutRecords(ctx, &kinesis.PutRecordsInput{StreamName: stream, Records: entries})
		check(err)
		failed += *answer.FailedRecordCount
	}

	iterator := func(shard *string) *string {
		answer, err := client.GetShardIterator(ctx, &kinesis.GetShardIteratorInput{
			StreamName: stream, ShardId: shard, ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
		})
		check(err)
		return answer.ShardIterator
	}
	var read []string
	for _, shard := range shards.Shards {
		page, err := client.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: iterator(shard.ShardId)})
		check(err)
		for _, record := range page.Records {
			read = append(read, string(record.Data))
		}
	}

	first := iterator(shards.Shards[0].ShardId)
	refused := []string{}
	for i := 0; i < refusals; i++ {
		_, err := oneAttempt.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: first})
		refused = append(refused, className(err))
	}
	_, missing := client.DescribeStreamSummary(ctx, &kinesis.DescribeStreamSummaryInput{StreamName: aws.String("missing")})
	_, again := client.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: stream, ShardCount: aws.Int32(1)})

	consumer := register(ctx, client, stream)
	var pushed []string
	for _, shard := range shards.Shards {
		data, err := push(ctx, client, consumer, shard.ShardId)
		check(err)
		pushed = append(pushed, data...)
	}
	failedInStream := []string{}
	for i := 0; i < failures; i++ {
		_, err := push(ctx, client, consumer, shards.Shards[0].ShardId)
		failedInStream = append(failedInStream, className(err))
	}

	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sdk": aws.SDKVersion, "is_listed": isListed, "shards": len(shards.Shards), "failed": failed,
		"read": len(read), "digest": digestOf(read),
		"missing": className(missing), "again": className(again), "refused": refused,
		"pushed": len(pushed), "pushed_digest": digestOf(pushed), "failures": failedInStream,
	}))
}

// register returns the ARN of a new consumer that is active.
func register(ctx context.Context, client *kinesis.Client, stream *string) *string {
	summary, err := client.DescribeStreamSummary(ctx, &kinesis.DescribeStreamSummaryInput{StreamName: stream})
	check(err)
	made, err := client.RegisterStreamConsumer(ctx, &kinesis.RegisterStreamConsumerInput{
		StreamARN: summary.StreamDescriptionSummary.StreamARN, ConsumerName: aws.String("fan"),
	})
	check(err)
	arn := made.Consumer.ConsumerARN
	for {
		found, err := client.DescribeStreamConsumer(ctx, &kinesis.DescribeStreamConsumerInput{ConsumerARN: arn})
		check(err)
		if found.ConsumerDescription.ConsumerStatus == types.ConsumerStatusActive {
			return arn
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// push returns the data of all events, when the stream of them has ended.
func push(ctx context.Context, client *kinesis.Client, consumer *string, shard *string) ([]string, error) {
	answer, err := client.SubscribeToShard(ctx, &kinesis.SubscribeToShardInput{
		ConsumerARN: consumer, ShardId: shard,
		StartingPosition: &types.StartingPosition{Type: types.ShardIteratorTypeTrimHorizon},
	})
	check(err)
	events := answer.GetStream()
	defer events.Close()
	var data []string
	for event := range events.Events() {
		for _, record := range event.(*types.SubscribeToShardEventStreamMemberSubscribeToShardEvent).Value.Records {
			data = append(data, string(record.Data))
		}
	}
	return data, events.Err()
}

func digestOf(data []string) string {
	sort.Strings(data)
	digest := sha256.Sum256([]byte(strings.Join(data, "\n")))
	return hex.EncodeToString(digest[:])
}

// className returns the name of the SDK's type for an error, or its code where there is no such type.
func className(err error) string {
	if err == nil {
		return "none"
	}
	var known smithy.APIError
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		if name := fmt.Sprintf("%T", cause); strings.HasPrefix(name, "*types.") {
			return strings.TrimPrefix(name, "*types.")
		}
	}
	if errors.As(err, &known) {
		return known.ErrorCode()
	}
	return fmt.Sprintf("%T", err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
