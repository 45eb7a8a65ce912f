"""The size of a stream: measured, planned and kept. The decisions are in `penstock.core.sizing`."""
