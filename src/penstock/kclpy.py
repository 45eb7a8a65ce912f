"""Processors written for amazon_kclpy v3, unchanged: without its JVM, and without the package itself.

::

    from penstock.kclpy import consumer_for

    consumer_for(MyRecordProcessor, stream="orders", application="billing").run()

A processor may derive from amazon_kclpy's own `RecordProcessorBase`, from the one here, or from nothing.
`install_amazon_kclpy()` makes `from amazon_kclpy import kcl` and `amazon_kclpy.v3.processor` work if the package is not
installed.

Two differences from the original, on purpose: an exception of the processor is not swallowed but follows the consumer's failure
policy, and there is one process for all shards.
"""

from penstock.consumer.kclpy import (
    Checkpointer,
    CheckpointError,
    InitializeInput,
    KCLProcess,
    KclpyRecord,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessorBase,
    ShardEndedInput,
    ShutdownRequestedInput,
    consumer_for,
    install_amazon_kclpy,
)

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "InitializeInput",
    "KCLProcess",
    "KclpyRecord",
    "LeaseLostInput",
    "ProcessRecordsInput",
    "RecordProcessorBase",
    "ShardEndedInput",
    "ShutdownRequestedInput",
    "consumer_for",
    "install_amazon_kclpy",
]


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
