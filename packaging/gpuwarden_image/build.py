"""Builds the image, from the lock, the tree and Debian's packages to the archive; the steps are on this screen."""

from __future__ import annotations

import platform
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuwarden_deb.build import work_folder
from gpuwarden_deb.control import project
from gpuwarden_deb.host import build_time, debian_architecture
from gpuwarden_deb.paths import COMMAND, ROOT
from gpuwarden_image import application, debian, extraction
from gpuwarden_image.archive import Description, Layer, write

NAME = "gpuwarden"
SOURCE = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class Image:
    """`unpacked`: bytes of its files."""

    file: Path
    reference: str
    unpacked: int


def build(output: Path, machine: str = "") -> Image:
    """The image, in the folder `output`. `machine`: x86_64 or aarch64; empty: this host's. Raises BuildError."""
    machine, epoch = machine or platform.machine(), build_time(ROOT)
    architecture = debian_architecture(machine)
    version, licence = project()
    output.mkdir(parents=True, exist_ok=True)
    with work_folder() as folder:
        folder.chmod(0o755)  # mmdebstrap of somebody who is not root enters it as another user
        application.make(folder / "stage", folder, machine, epoch)
        extraction.make(
            folder / "tree.tar",
            folder / "stage",
            folder,
            epoch,
            architecture=architecture,
            native=machine == platform.machine(),
        )
        layer = fill(folder / "tree.tar", epoch)
    image = describe(version, licence, architecture, epoch)
    file = output / f"{NAME}_{version}_{architecture}.tar"
    new = file.with_suffix(".new")
    write(new, layer.tar(), image)
    new.replace(file)
    return Image(file, f"{image.name}:{image.tag}", layer.size())


def fill(tree: Path, epoch: int) -> Layer:
    """What is taken of the archive, and what the scripts of the packages would have made."""
    layer, certificates = Layer(epoch), []
    with tarfile.open(tree) as archive:
        packages = debian.Packages(archive)
        for member in archive:
            path = "/" + member.name.removeprefix("./").rstrip("/")
            if member.isdir() or not packages.taken(path):
                continue
            opened = archive.extractfile(member) if member.isreg() else None
            data = opened.read() if opened else b""
            if path.startswith("/usr/share/ca-certificates/"):
                certificates.append((path, data))
            else:
                layer.member(member, path, data)
    for path, mode in debian.FOLDERS.items():
        layer.folder(path, mode)
    for path, text in (*debian.MADE.items(), *packages.status()):
        layer.file(path, text.encode())
    for path, target in debian.LINKS.items():
        layer.link(path, target)
    layer.file(debian.CERTIFICATES, b"".join(data for _, data in sorted(certificates)))
    return layer


def describe(version: str, licence: str, architecture: str, epoch: int) -> Description:
    """Root, without which the kernel log cannot be read: an engine gives capabilities to no other user. What it may do is the
    matter of whoever starts it (docs/use/container.md). NVIDIA's toolkit reads the variables: all GPUs; NVML, and CUDA for `gpuwarden test`.
    """
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    config = {
        "Entrypoint": [str(COMMAND)], "Cmd": ["run"], "User": "0:0", "WorkingDir": "/", "StopSignal": "SIGTERM",
        "ExposedPorts": {"9839/tcp": {}},
        "Env": [
            "PATH=/usr/bin:/usr/sbin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONSAFEPATH=1", "container=oci",
            "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ],
        "Labels": {
            f"{SOURCE}.title": NAME, f"{SOURCE}.version": version, f"{SOURCE}.licenses": licence, f"{SOURCE}.created": created,
            f"{SOURCE}.description": "Node-local health daemon for GPU hosts: reads, judges, publishes, acts",
            f"{SOURCE}.base.name": f"debian:{debian.SUITE}",
        },
    }  # fmt: skip
    return Description(name=NAME, tag=version, architecture=architecture, created=created, config=config)
