"""Writing to a stream: `Producer` for programs, `TaskWriter` for bounded sets of records such as a Spark task's."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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
    "Acknowledgement": "receipts",
    "AsyncProducer": "async_producer",
    "Producer": "producer",
    "ProducerKeywords": "keywords",
    "ProducerOptions": "producer",
    "TaskMemory": "task_writer",
    "TaskWriter": "task_writer",
    "TaskWriterOptions": "task_writer",
    "WriteReport": "write_report",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: a Spark task writes without `Producer` and its threads."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.producer' has no attribute {name!r}")
    return getattr(import_module(f"penstock.producer.{home}"), name)
