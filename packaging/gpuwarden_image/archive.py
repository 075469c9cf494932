"""An image of one layer as a file that `docker load`, `podman load` and `ctr images import` take.

It has the index of the OCI image layout and the older manifest.json side by side, both of the same blobs; the same files give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TYPE = "application/vnd.oci.image"
_BLOBS = "blobs/sha256"


class Layer:
    """Files of root, none younger than `epoch`. What is added again replaces what was there."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def member(self, info: tarfile.TarInfo, path: str, data: bytes = b"") -> None:
        """One of another archive, with its kind and its mode."""
        self._parents(path)
        new = tarfile.TarInfo(path.lstrip("/"))
        new.type, new.mode, new.linkname, new.size = info.type, info.mode & 0o1777, info.linkname, len(data)
        new.mtime = min(int(info.mtime), self._epoch)
        self._members[path] = new, data

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.member(_info(tarfile.REGTYPE, mode, self._epoch), path, data)

    def folder(self, path: str, mode: int = 0o755) -> None:
        self.member(_info(tarfile.DIRTYPE, mode, self._epoch), path)

    def link(self, path: str, target: str) -> None:
        self.member(_info(tarfile.SYMTYPE, 0o777, self._epoch, target), path)

    def _parents(self, path: str) -> None:
        """Each folder is named before what is in it, though no package may."""
        parent = path.rpartition("/")[0]
        if parent and parent not in self._members:
            self.folder(parent)

    def size(self) -> int:
        return sum(len(data) for _, data in self._members.values())

    def tar(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for _, (info, data) in sorted(self._members.items()):
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()


def _info(kind: bytes, mode: int, epoch: int, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.mode, info.mtime, info.linkname = kind, mode, epoch, target
    return info


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine needs to know of an image. `config`: as in the OCI image specification, with Env, Entrypoint, Cmd, Labels."""

    name: str
    tag: str
    architecture: str
    created: str
    config: Mapping[str, Any]


def write(file: Path, layer: bytes, image: Description) -> None:
    packed = gzip.compress(layer, 6, mtime=0)
    document = {
        "architecture": image.architecture, "os": "linux", "created": image.created, "config": dict(image.config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        "history": [{"created": image.created, "created_by": "make image", "comment": "gpuwarden"}],
    }  # fmt: skip
    config = _json(document)
    manifest = _json(
        {
            "schemaVersion": 2, "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": _descriptor(f"{_TYPE}.config.v1+json", config),
            "layers": [_descriptor(f"{_TYPE}.layer.v1.tar+gzip", packed)],
        }
    )  # fmt: skip
    named = {
        "io.containerd.image.name": f"docker.io/library/{image.name}:{image.tag}",
        "org.opencontainers.image.ref.name": image.tag,
    }
    entry = {
        **_descriptor(f"{_TYPE}.manifest.v1+json", manifest), "annotations": named,
        "platform": {"architecture": image.architecture, "os": "linux"},
    }  # fmt: skip
    legacy = {"Config": _blob(config), "RepoTags": [f"{image.name}:{image.tag}"], "Layers": [_blob(packed)]}
    whole = Layer(0)
    for blob in (config, manifest, packed):
        whole.file(_blob(blob), blob)
    whole.file("index.json", _json({"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]}))
    whole.file("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    whole.file("manifest.json", _json([legacy]))
    file.write_bytes(whole.tar())


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(blob)}", "size": len(blob)}


def _blob(blob: bytes) -> str:
    return f"{_BLOBS}/{_digest(blob)}"


def _digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
