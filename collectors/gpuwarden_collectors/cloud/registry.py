"""The clouds with a metadata service that announces an end: its endpoint and its source."""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.alibaba import Alibaba
from gpuwarden_collectors.cloud.aws import Aws
from gpuwarden_collectors.cloud.azure import Azure
from gpuwarden_collectors.cloud.gcp import Gcp
from gpuwarden_collectors.cloud.metadata import Metadata
from gpuwarden_collectors.cloud.source import CloudSource
from gpuwarden_collectors.cloud.tencent import Tencent

ENDPOINTS = {
    "aws": "http://169.254.169.254",
    "gcp": "http://169.254.169.254",  # by address: names may be gone while a machine shuts down
    "azure": "http://169.254.169.254",
    "alibaba": "http://100.100.100.200",
    "tencent": "http://metadata.tencentyun.com",
}
_MAKERS: dict[str, Callable[[Metadata, Clock, float], CloudSource]] = {
    "aws": Aws, "gcp": Gcp, "azure": Azure, "alibaba": Alibaba, "tencent": Tencent,
}  # fmt: skip


def cloud_source(
    name: str, clock: Clock, *, endpoint: str = "", timeout: float = 2.0, interval: float = 1.0
) -> CloudSource:
    """`endpoint` empty: the cloud's own. Times in seconds. Raises KeyError for a stranger."""
    return _MAKERS[name](Metadata(endpoint or ENDPOINTS[name], timeout), clock, interval)
