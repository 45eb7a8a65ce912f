"""Operations on the account: its limits and its settings, each per region."""

from __future__ import annotations

from dataclasses import replace

from penstock_local import quotas
from penstock_local.documents import Timestamp
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.store import AccountSettings


def DescribeLimits(call: ServiceCall, request: Document) -> Document:  # noqa: ARG001 - it has no members
    """Return the account's quotas."""
    call.admit()
    streams = call.service.store.of_region(call.region, call.now_ms)
    return {
        "ShardLimit": call.service.store.options.shard_count_max,
        "OpenShardCount": sum(len(s.open_shards) for s in streams if s.mode == "PROVISIONED"),
        "OnDemandStreamCount": sum(s.mode == "ON_DEMAND" for s in streams),
        "OnDemandStreamCountLimit": quotas.ON_DEMAND_STREAMS_MAX,
        "ChannelCount": len(call.service.store.channels.of_region(call.region, call.now_ms)),
        "ChannelCountLimit": quotas.CHANNELS_PER_STREAM_MAX * quotas.ON_DEMAND_STREAMS_MAX,
    }


def DescribeAccountSettings(call: ServiceCall, request: Document) -> Document:  # noqa: ARG001 - it has no members
    """Return the account's billing commitment."""
    call.admit()
    return _commitment(call)


def UpdateAccountSettings(call: ServiceCall, request: Document) -> Document:
    """Enable or disable the billing commitment; once enabled it lasts for a day at least."""
    call.admit()
    settings = call.service.store.accounts.get(call.region, AccountSettings())
    enabled = is_committed(call) and settings.disabled_ms is None
    if request["MinimumThroughputBillingCommitment"]["Status"] == "ENABLED":
        started_ms = settings.started_ms if is_committed(call) else call.now_ms
        call.service.store.set_account(call.region, AccountSettings(started_ms))
    elif enabled:
        call.service.store.set_account(call.region, replace(settings, disabled_ms=call.now_ms))
    return _commitment(call)


def is_committed(call: ServiceCall) -> bool:
    """Return whether the commitment holds now: it is enabled, or its first day is not over yet."""
    settings = call.service.store.accounts.get(call.region)
    if settings is None or settings.started_ms is None:
        return False
    return settings.disabled_ms is None or call.now_ms < max(
        settings.disabled_ms, settings.started_ms + quotas.DAY_MS
    )


def _commitment(call: ServiceCall) -> Document:
    settings = call.service.store.accounts.get(call.region, AccountSettings())
    if settings.started_ms is None:
        return {"MinimumThroughputBillingCommitment": {"Status": "DISABLED"}}
    earliest_ms = settings.started_ms + quotas.DAY_MS
    shown: Document = {"StartedAt": Timestamp(settings.started_ms)}
    if settings.disabled_ms is None:
        shown |= {"Status": "ENABLED", "EarliestAllowedEndAt": Timestamp(earliest_ms)}
    elif is_committed(call):
        shown |= {
            "Status": "ENABLED_UNTIL_EARLIEST_ALLOWED_END",
            "EarliestAllowedEndAt": Timestamp(earliest_ms),
        }
    else:
        shown |= {"Status": "DISABLED", "EndedAt": Timestamp(max(settings.disabled_ms, earliest_ms))}
    return {"MinimumThroughputBillingCommitment": shown}
