"""Installs, compares and removes the files of the service. A manifest has the installed files with their hashes: files
that an administrator has changed are never overwritten or removed, and foreign files are never touched.

Paths are relative to `root`, which is `/` except in tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from gpuwarden.base.files import replace_file
from gpuwarden.service.files import LINKS, LOCAL_UNITS, PACKAGED_UNITS, File
from gpuwarden_collectors.dataclass import dataclass

MANIFEST = "usr/local/share/gpuwarden/service.json"
FORMAT = 1
_BYTES_MOST = 1 << 20


class ServiceError(Exception):
    """Nothing was changed. The message has the reason and the advice."""


class State(StrEnum):
    """State of a file or link, compared with what this version installs."""

    MISSING = "not installed"
    SAME = "as installed"
    OUTDATED = "of another version"
    CHANGED = "changed by hand"
    FOREIGN = "not gpuwarden's"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The installed files with their hashes, and the installed links with their targets, by path."""

    version: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


class Installation:
    """The files of one version of gpuwarden, and their state on this host."""

    def __init__(self, root: Path, files: Iterable[File], version: str) -> None:
        self._root = root
        self._files = {file.path: file for file in files}
        self._version = version

    def states(self) -> dict[str, State]:
        """Return the state of each file and link of this version or of the manifest, by path. Raises ServiceError."""
        manifest = self._manifest()
        files = {path: self._file(path, manifest) for path in (*self._files, *manifest.files)}
        return files | {path: self._link(path, manifest) for path in (*LINKS, *manifest.links)}

    def install(self) -> dict[str, State]:
        """Write files that are missing or of another version, and return the previous states.

        Raises ServiceError before anything is written if a package provides the units or a file is foreign.
        """
        for folder in PACKAGED_UNITS:
            for unit in (path for path in self._files if path.startswith(LOCAL_UNITS)):
                packaged = self._root / folder / Path(unit).name
                if os.path.lexists(packaged):
                    to_do = "use that one, or remove the package first (apt remove gpuwarden, dnf remove gpuwarden)"
                    raise ServiceError(f"a package of this host has the units already ({packaged}): {to_do}")
        before = self.states()
        foreign = [path for path, state in before.items() if state is State.FOREIGN]
        if foreign:
            raise ServiceError(f"not installed by gpuwarden: /{', /'.join(foreign)}; move it away, then try again")
        manifest = self._manifest()
        written = [path for path in self._files if before[path] is not State.CHANGED]
        left = {path: manifest.files[path] for path in manifest.files if before[path] is State.CHANGED}
        linked = {path: target for path, target in LINKS.items() if before[path] is not State.CHANGED}
        kept = {path: manifest.links[path] for path in manifest.links if before[path] is State.CHANGED}
        hashes = {path: _hash(self._files[path].content) for path in written}
        # first, so that it lists the files of an interrupted installation; existing files keep their previous hash
        self._write_manifest(Manifest(self._version, {**hashes, **manifest.files}, {**linked, **kept}))
        for path in written:
            file = self._files[path]
            self._put(path, file.content, file.mode)
        for path, target in linked.items():
            self._folder((self._root / path).parent)
            with contextlib.suppress(FileExistsError):
                (self._root / path).symlink_to(target)
        for path in manifest.files.keys() - self._files.keys():  # of an earlier version
            if before[path] is not State.CHANGED:
                self._drop(path)
        self._write_manifest(Manifest(self._version, {**hashes, **left}, {**linked, **kept}))
        return before

    def installed(self) -> dict[str, State]:
        """Return the states of what was installed. Raises ServiceError if nothing was: the units may be a package's."""
        manifest = self._manifest()
        if not manifest.files:
            raise ServiceError("nothing was installed by gpuwarden service install")
        return {
            path: state for path, state in self.states().items() if path in manifest.files or path in manifest.links
        }

    def remove(self) -> dict[str, State]:
        """Delete installed files and links that are unchanged. Return the previous states. Raises ServiceError."""
        before = self.installed()
        for path, state in before.items():
            if state is not State.CHANGED:
                self._drop(path)
        (self._root / MANIFEST).unlink()
        self._tidy(MANIFEST)
        return before

    def _file(self, path: str, manifest: Manifest) -> State:
        here = self._root / path
        if not os.path.lexists(here):
            return State.MISSING
        content = here.read_bytes()[:_BYTES_MOST] if here.is_file() and not here.is_symlink() else b""
        wanted = self._files.get(path)
        if wanted is not None and content == wanted.content:
            return State.SAME
        if path not in manifest.files:
            return State.FOREIGN
        return State.OUTDATED if _hash(content) == manifest.files[path] else State.CHANGED

    def _link(self, path: str, manifest: Manifest) -> State:
        """Return the state of a link. Another target is an administrator's choice, even before the first install."""
        here = self._root / path
        if not os.path.lexists(here):
            return State.MISSING
        target = str(here.readlink()) if here.is_symlink() else ""
        return State.SAME if target == manifest.links.get(path, LINKS.get(path)) else State.CHANGED

    def _manifest(self) -> Manifest:
        path = self._root / MANIFEST
        try:
            document: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if document["format"] != FORMAT:
                return self._unreadable(path, f"format {document['format']}")
            return Manifest(str(document["version"]), dict(document["files"]), dict(document["links"]))
        except FileNotFoundError:
            return Manifest()
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self._unreadable(path, str(error))

    def _unreadable(self, path: Path, why: str) -> NoReturn:
        to_do = "it lists what gpuwarden installed; restore it, or delete it and the files by hand"
        raise ServiceError(f"cannot read {path}: {why}; {to_do}")

    def _write_manifest(self, manifest: Manifest) -> None:
        document = {"format": FORMAT, "version": manifest.version, "files": manifest.files, "links": manifest.links}
        self._put(MANIFEST, json.dumps(document, indent=1).encode(), 0o644)

    def _put(self, path: str, content: bytes, mode: int) -> None:
        target = self._root / path
        self._folder(target.parent)
        replace_file(target, content, mode=mode)

    def _folder(self, folder: Path) -> None:
        """Create a folder with mode 0755 regardless of umask: Slurm's user and jobs run programs in some folders."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir()
            each.chmod(0o755)

    def _drop(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)
        self._tidy(path)

    def _tidy(self, path: str) -> None:
        """Remove gpuwarden's own parent folders of the path that are empty."""
        for folder in (self._root / path).parents:
            if not folder.name.startswith(("gpuwarden", "profiles")):
                return
            with contextlib.suppress(OSError):
                folder.rmdir()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
