"""The clouds with a metadata service that announces an end: the only list of them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden_collectors.cloud import alibaba, aws, azure, gcp, tencent
from gpuwarden_collectors.cloud.spec import AnyCloud

_CLOUDS: tuple[AnyCloud, ...] = (aws.CLOUD, gcp.CLOUD, azure.CLOUD, alibaba.CLOUD, tencent.CLOUD)
CLOUDS: Mapping[str, AnyCloud] = {cloud.name: cloud for cloud in _CLOUDS}
"""By name. In this order the firmware is compared with them."""
