"""Run the processor with Penstock, until the input ends: `penstock_worker.py STREAM APPLICATION`."""

from __future__ import annotations

import sys

from processor import Processor

from penstock.consumer.kclpy import consumer_for

consumer = consumer_for(
    Processor, sys.argv[1], sys.argv[2], starting_position="TRIM_HORIZON", lease_duration_s=5.0
)
with consumer:
    sys.stdin.read()
