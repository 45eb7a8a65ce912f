"""A user's test is type-checked against `penstock.testing`."""

from __future__ import annotations

import subprocess
import sys
import textwrap

TYPED = """
    import asyncio

    from penstock import Batch, Record, testing
    from penstock.consumer import AsyncBatch
    from penstock.consumer.kclpy import RecordProcessorBase


    def handle(batch: Batch) -> None:
        batch.checkpoint(batch[0])


    async def handle_later(batch: AsyncBatch) -> None:
        await batch.checkpoint()


    def test_all() -> None:
        made = testing.records("a", b"b", {"c": 1}) + testing.aggregate("d", "e")
        run: testing.Run = testing.run(handle, made, faults=testing.Faults(lease_lost_after=1))
        checkpoint: Record | None = run.checkpoint
        letters: list[Record] = run.dead_letters
        waits: list[float] = [call.wait_s for call in run.retries]
        later = asyncio.run(testing.run_async(handle_later, made, concurrency=2))
        kclpy = testing.run_kclpy(RecordProcessorBase, made, may_fail=True)
        stored: Record | None = testing.batch(made).stored
        handle(testing.batch(made))
        print(checkpoint, letters, waits, later.left, kclpy.failure, stored)
"""


def test_a_typed_test_passes_the_strictest_check(tmp_path):
    program = tmp_path / "test_orders.py"
    program.write_text(textwrap.dedent(TYPED))
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--cache-dir",
            str(tmp_path),
            str(program),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
