import signal
import threading

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

spark = SparkSession.builder.master("local[2,4]").getOrCreate()
numbers = (
    spark.readStream.format("kinesis")
    .option("streamName", "orders")
    .option("startingPosition", "TRIM_HORIZON")
    .load()
    .select(col("data").cast("string").try_cast("int").alias("number"), "approximateArrivalTimestamp")
)
query = numbers.writeStream.format("console").option("checkpointLocation", "/tmp/orders-checkpoint").start()

is_over = threading.Event()
signal.signal(signal.SIGINT, lambda *_: is_over.set())  # Ctrl-C
while not query.awaitTermination(1):
    if is_over.is_set():
        query.stop()
        break
