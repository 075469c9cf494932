"""Number of GPUs by machine type: an exact table of whole machines.

Types are `vendor/product` from the firmware (DMI `sys_vendor` and `product_name`), which on EC2 has the instance type.
Azure and Google have one product name for all machines; their metadata services give the type if they are a source of
termination notices. Types with a fraction of a GPU (g6f, gr6f) are left out; a type that is not listed is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

VERSION = "2026-11-23"
# aws/karpenter-provider-aws, instance-types.md at 1d92708: instance-gpu-count, from EC2's DescribeInstanceTypes.
_EC2: tuple[tuple[int, str, str], ...] = (
    (1, "g4dn", "xlarge 2xlarge 4xlarge 8xlarge 16xlarge"),
    (4, "g4dn", "12xlarge"),
    (8, "g4dn", "metal"),
    (1, "g5", "xlarge 2xlarge 4xlarge 8xlarge 16xlarge"),
    (4, "g5", "12xlarge 24xlarge"),
    (8, "g5", "48xlarge"),
    (1, "g5g", "xlarge 2xlarge 4xlarge 8xlarge"),
    (2, "g5g", "16xlarge metal"),
    (1, "g6", "xlarge 2xlarge 4xlarge 8xlarge 16xlarge"),
    (4, "g6", "12xlarge 24xlarge"),
    (8, "g6", "48xlarge"),
    (1, "gr6", "4xlarge 8xlarge"),
    (1, "g6e", "xlarge 2xlarge 4xlarge 8xlarge 16xlarge"),
    (4, "g6e", "12xlarge 24xlarge"),
    (8, "g6e", "48xlarge"),
    (1, "g7", "2xlarge 4xlarge 8xlarge"),
    (2, "g7", "12xlarge"),
    (4, "g7", "24xlarge"),
    (8, "g7", "48xlarge"),
    (1, "g7e", "2xlarge 4xlarge 8xlarge"),
    (2, "g7e", "12xlarge"),
    (4, "g7e", "24xlarge"),
    (8, "g7e", "48xlarge"),
    (8, "p3dn", "24xlarge"),
    (8, "p4d", "24xlarge"),
    (8, "p4de", "24xlarge"),
    (1, "p5", "4xlarge"),
    (8, "p5", "48xlarge"),
    (8, "p5e", "48xlarge"),
    (8, "p5en", "48xlarge"),
    (8, "p6-b200", "48xlarge"),
    (8, "p6-b300", "48xlarge"),
)

# MicrosoftDocs/azure-compute-docs, articles/virtual-machines/sizes/gpu-accelerated: accelerators of the sizes of the ND family.
_AZURE = {
    "Standard_ND96asr_v4": 8,
    "Standard_ND96amsr_A100_v4": 8,
    "Standard_ND96isr_H100_v5": 8,
    "Standard_ND96isr_H200_v5": 8,
    "Standard_ND128isr_NDR_GB200_v6": 4,
    "Standard_ND128isr_GB300_v6": 4,
    "Standard_ND128isrG5_GB300_v6": 4,
}

# GoogleCloudPlatform/cluster-toolkit, modules/internal/gpu-definition/main.tf at 147e356: accelerator_machines.
_GOOGLE: tuple[tuple[str, str], ...] = (
    ("a2-highgpu-{}g", "1 2 4 8"),
    ("a2-megagpu-{}g", "16"),
    ("a2-ultragpu-{}g", "1 2 4 8"),
    ("a3-highgpu-{}g", "1 2 4 8"),
    ("a3-megagpu-{}g", "8"),
    ("a3-ultragpu-{}g", "8"),
    ("a4-highgpu-{}g", "8"),
    ("a4-highgpu-{}g-lowmem", "8"),
    ("a4x-highgpu-{}g", "4"),
    ("a4x-highgpu-{}g-nolssd", "4"),
)
"""Names that contain the number of GPUs, and the numbers that exist."""
_GOOGLE_STANDARD: tuple[tuple[int, str, str], ...] = (
    (1, "g2-standard", "4 8 12 16 32"),
    (2, "g2-standard", "24"),
    (4, "g2-standard", "48"),
    (8, "g2-standard", "96"),
    (1, "g4-standard", "48"),
    (2, "g4-standard", "96"),
    (4, "g4-standard", "192"),
    (8, "g4-standard", "384"),
)
"""Number of GPUs, family, and numbers of virtual CPUs."""


def _rows() -> Iterator[tuple[str, int]]:
    for count, family, sizes in _EC2:
        for size in sizes.split():
            yield f"Amazon EC2/{family}.{size}", count
    for size, count in _AZURE.items():
        yield f"Azure/{size}", count
    for form, counts in _GOOGLE:
        for of_gpus in counts.split():
            yield f"Google/{form.format(of_gpus)}", int(of_gpus)
    for count, family, cpus in _GOOGLE_STANDARD:
        for of_cpus in cpus.split():
            yield f"Google/{family}-{of_cpus}", count


GPUS_OF: Mapping[str, int] = dict(_rows())
"""Number of GPUs by machine type."""


def name_of(machine_type: str) -> str:
    """Return the machine type without its vendor, for people."""
    return machine_type.partition("/")[2] or machine_type
