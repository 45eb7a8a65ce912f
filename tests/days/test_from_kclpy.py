"""A processor that was written for amazon_kclpy runs unchanged; after a while a plain handler takes its place."""

from user_programs import CONSUMER, Orders, once

# As in amazon_kclpy's own sample: the processor checkpoints by itself, after each call.
PROCESSOR = r"""
    from penstock.consumer.kclpy import consumer_for, install_amazon_kclpy

    install_amazon_kclpy()

    from amazon_kclpy import kcl
    from amazon_kclpy.v3 import processor

    class RecordProcessor(processor.RecordProcessorBase):
        def initialize(self, initialize_input):
            self.shard_id = initialize_input.shard_id

        def process_records(self, process_records_input):
            for record in process_records_input.records:
                print(record.binary_data.decode() + "\n", end="", flush=True)
            process_records_input.checkpointer.checkpoint()

        def lease_lost(self, lease_lost_input):
            pass

        def shard_ended(self, shard_ended_input):
            shard_ended_input.checkpointer.checkpoint()

        def shutdown_requested(self, shutdown_requested_input):
            shutdown_requested_input.checkpointer.checkpoint()

    consumer_for(RecordProcessor, stream="orders", application="billing", starting_position="TRIM_HORIZON").run()
"""


def test_a_plain_handler_takes_the_place_of_a_kclpy_processor(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    processor = programs.start(PROCESSOR, name="processor")
    programs.wait_for(orders)
    orders.put(50)
    programs.wait_for(orders)
    assert processor.terminate() == 0, processor.log()
    orders.put(50)
    handler = programs.start(CONSUMER, name="handler")
    programs.wait_for(orders)
    assert handler.terminate() == 0
    assert programs.printed() == once(orders)
    back = programs.start(PROCESSOR, name="back")  # the new version had a fault, so the old one comes back
    orders.put(50)
    programs.wait_for(orders)
    assert back.terminate() == 0, back.log()
    assert programs.printed() == once(orders)
