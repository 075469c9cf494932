"""The list of clouds whose metadata service announces a termination."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden_collectors.cloud.spec import AnyCloud, CloudSpec, MetadataOptions, begins, equals
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AzureOptions(MetadataOptions):
    """The metadata service of Azure."""

    approve: bool = False
    """Once all jobs have saved, approve the event of this machine, so that Azure begins it at once and not at its `NotBefore`."""


def _uuid_is_ec2(firmware: Mapping[str, str]) -> bool:
    uuid, serial = firmware["product_uuid"].lower(), firmware["product_serial"].lower()
    return uuid == serial and uuid.startswith("ec2")


def _xen_is_ec2(firmware: Mapping[str, str]) -> bool:
    """True for an old EC2 machine, whose firmware names Xen or no vendor."""
    xen = firmware["sys_vendor"].lower() in ("", "xen")
    return xen and firmware["hypervisor_uuid"].lower().startswith("ec2")


AZURE = CloudSpec(
    name="azure",
    source="azure:Azure",
    options=AzureOptions,
    firmware=(equals("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),),
    unreachable="check that 169.254.169.254 is routed and not filtered here",
    unread="Scheduled Events were not read: the daemon's first request switches them on",
)
_CLOUDS: tuple[AnyCloud, ...] = (
    CloudSpec(
        name="aws",
        source="aws:Aws",
        options=MetadataOptions,
        firmware=(equals("sys_vendor", "Amazon EC2"), _uuid_is_ec2, _xen_is_ec2),
        unreachable="enable the instance metadata service; in a container it needs a hop limit of 2, or the host's network",
    ),
    CloudSpec(
        name="gcp",
        source="gcp:Gcp",
        options=MetadataOptions,
        firmware=(equals("product_name", "Google Compute Engine"), begins("product_serial", "GoogleCloud-")),
        unreachable="use the host's network: the proxy of GKE does not pass it on",
    ),
    AZURE,
    CloudSpec(
        name="alibaba",
        source="spot_time:Alibaba",
        options=MetadataOptions,
        endpoint="http://100.100.100.200",
        firmware=(equals("product_name", "Alibaba Cloud ECS"),),
        unreachable="check that 100.100.100.200 is routed here, and that no overlay network has taken its range",
    ),
    CloudSpec(
        name="tencent",
        source="spot_time:Tencent",
        options=MetadataOptions,
        endpoint="http://metadata.tencentyun.com",
        firmware=(equals("sys_vendor", "Tencent Cloud"),),
        unreachable="check that metadata.tencentyun.com can be resolved and reached here",
    ),
)
CLOUDS: Mapping[str, AnyCloud] = {cloud.name: cloud for cloud in _CLOUDS}
"""All clouds by name, in the order in which the firmware is compared."""
