"""Writing to a stream: `Producer` for programs, `TaskWriter` for bounded sets of records such as a Spark task's."""

from penstock.producer.engine import Acknowledgement
from penstock.producer.producer import AsyncProducer, Producer, ProducerOptions
from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions, WriteReport

__all__ = [
    "Acknowledgement",
    "AsyncProducer",
    "Producer",
    "ProducerOptions",
    "TaskMemory",
    "TaskWriter",
    "TaskWriterOptions",
    "WriteReport",
]
