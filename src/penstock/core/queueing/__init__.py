"""Delivery of a queue's records: visibility, acknowledgement, back-off, receives. Pure."""
