"""kubelet's list of the devices of each container, on the wire (`k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`, package `v1`):

    service PodResourcesLister { rpc List(ListPodResourcesRequest) returns (ListPodResourcesResponse); }
    ListPodResourcesRequest  {}
    ListPodResourcesResponse { repeated PodResources pod_resources = 1; }
    PodResources             { string name = 1; string namespace = 2; repeated ContainerResources containers = 3; }
    ContainerResources       { string name = 1; repeated ContainerDevices devices = 2; …; repeated DynamicResource dynamic_resources = 5; }
    ContainerDevices         { string resource_name = 1; repeated string device_ids = 2; … }

Everything else in it (CPUs, memory, topology, what later versions add) is skipped without being decoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.kubelet import VENDOR
from gpuwarden_collectors.kubelet.facts import PodContainer, PodsFacts

METHOD = "/v1.PodResourcesLister/List"
CONTAINERS_MOST = 1024
"""Most containers with GPUs; kubelet runs 110 pods by default."""
DEVICES_MOST = 256  # of one container
_TEXT_MOST = 253  # bytes: of a name in Kubernetes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_LONGEST = 10  # bytes
_GPU = f"{VENDOR}gpu"
_RESOURCES = (f"{_GPU}.", f"{VENDOR}mig-")
"""Shared GPUs and MIG instances. NVIDIA's other resources are network cards, or GPUs of virtual machines."""
_IDS = ("GPU-", "MIG-")
"""Ids of GPUs under any resource name: a plugin may be configured to rename its resource."""


class Malformed(ValueError):  # noqa: N818 - of the answer
    """The data is not a protobuf message."""


def decoded(response: bytes) -> PodsFacts:
    """Decodes a ListPodResourcesResponse. Raises Malformed."""
    claims = 0
    containers: list[PodContainer] = []
    for pod in _messages(memoryview(response), 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _messages(pod, 3):
            claims += any(True for _ in _messages(container, 5))
            devices = tuple(sorted(set(_gpus(container)))[:DEVICES_MOST])  # kubelet's order varies
            if devices:
                containers.append(
                    PodContainer(namespace=namespace, pod=name, container=_text(container, 1), devices=devices)
                )
    containers.sort(key=lambda pod_container: (pod_container.namespace, pod_container.pod, pod_container.container))
    return PodsFacts(containers=tuple(containers[:CONTAINERS_MOST]), claims=claims)


def _gpus(container: memoryview) -> Iterator[str]:
    for devices in _messages(container, 2):
        resource = _text(devices, 1)
        is_gpu = resource == _GPU or resource.startswith(_RESOURCES)
        ids = (bytes(message[:_TEXT_MOST]).decode("utf-8", "replace") for message in _messages(devices, 2))
        yield from (device for device in ids if is_gpu or device.startswith(_IDS))


def _text(message: memoryview, number: int) -> str:
    """Returns the text of a field that occurs once; if it is repeated the last one counts, as in protobuf."""
    last = b""
    for value in _messages(message, number):
        last = bytes(value[:_TEXT_MOST])
    return last.decode("utf-8", "replace")


def _messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yields the values of one length-delimited field: text, bytes, messages."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise Malformed(f"wire type {kind}")
        if size > end - at:
            raise Malformed("a field is cut off")
        if number == wanted and kind == _BYTES:
            yield message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Decodes a varint: seven bits a byte, the lowest first; the eighth means that more follow."""
    value = 0
    for place in range(_VARINT_LONGEST):
        if at >= len(message):
            raise Malformed("a number is cut off")
        byte = message[at]
        value |= (byte & 0x7F) << 7 * place
        at += 1
        if byte < 0x80:
            return value, at
    raise Malformed("a number has more than 64 bits")
