"""Types of the options that the helper functions of `penstock.spark` take by keyword, for type checkers."""

from __future__ import annotations

from typing import TypedDict


class SinkKeywords(TypedDict, total=False):
    """Options of the sink by keyword, all but the stream's, as texts; docs/options.md describes them."""

    region: str
    endpointUrl: str
    profile: str
    awsAccessKeyId: str
    awsSecretKey: str
    sessionToken: str
    roleArn: str
    roleSessionName: str
    roleExternalId: str
    stsEndpoint: str
    maxRetries: str
    retryInterval: str
    maxRetryInterval: str
    retryDeadline: str
    requestTimeout: str
    aggregation: str
    ordering: str
    rateLimit: str
    maxRecordsPerBatch: str
    bufferBytes: str
    onError: str
    deadLetterPath: str
    deadLetterStream: str
    writeDeadline: str
