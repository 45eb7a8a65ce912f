"""Writing to a stream: `Producer` for programs, `TaskWriter` for bounded sets of records such as a Spark task's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use

if TYPE_CHECKING:
    from penstock.producer.async_producer import AsyncProducer
    from penstock.producer.keywords import ProducerKeywords
    from penstock.producer.producer import Producer, ProducerOptions
    from penstock.producer.receipts import Acknowledgement
    from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions
    from penstock.producer.write_report import WriteReport

__all__ = [
    "Acknowledgement",
    "AsyncProducer",
    "Producer",
    "ProducerKeywords",
    "ProducerOptions",
    "TaskMemory",
    "TaskWriter",
    "TaskWriterOptions",
    "WriteReport",
]

_HOMES: Final = {
    ".async_producer": "AsyncProducer",
    ".keywords": "ProducerKeywords",
    ".producer": "Producer ProducerOptions",
    ".receipts": "Acknowledgement",
    ".task_writer": "TaskMemory TaskWriter TaskWriterOptions",
    ".write_report": "WriteReport",
}

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, __all__)
