"""The last configuration that the service started with: a copy of its files, for a start at which they have a fault.

Otherwise a typing error before a restart would leave a fleet unmonitored. The copy names programs to run, so a daemon
of root keeps it in a folder that only root can write, in every profile, and ignores a copy that others could have
written. Its path depends only on the environment and the command line, since the files may be unreadable. Like the
files, it contains paths of secrets, not secrets.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

from gpuwarden.base.files import read_regular, replace_file
from gpuwarden.base.paths import STATE_DIR, beside_for_slurm
from gpuwarden.config.sources import Layer, Sources, environment_layers, merge

NAME = "last-good-configuration.json"
FORMAT = 1
_BYTES_MOST = 8 << 20


class NoneKept(Exception):  # noqa: N818 - a state
    """No usable copy exists. The message has the reason."""


def keep(sources: Sources, layers: tuple[Layer, ...]) -> None:
    """Replace the copy by these files, atomically. Does nothing if they are equal. Raises OSError."""
    path = _path(sources)
    files = [{"origin": layer.origin, "tree": layer.tree} for layer in layers]
    data = json.dumps({"format": FORMAT, "file": str(sources.file), "files": files}, default=str)
    try:
        if _trusted(path) == data.encode():
            return
    except (OSError, NoneKept):
        pass
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(path, data, mode=0o600, synced=True)


def kept(sources: Sources) -> Sources:
    """Return the sources with the copy in place of the files. Raises NoneKept."""
    path = _path(sources)
    try:
        document = json.loads(_trusted(path))
        if document["format"] != FORMAT or document["file"] != str(sources.file):
            raise NoneKept(f"{path} belongs to other files or another version")
        layers = tuple(Layer(str(each["origin"]), dict(each["tree"])) for each in document["files"])
    except FileNotFoundError:
        raise NoneKept(f"no earlier start with a good one is recorded in {path}") from None
    except OSError as error:
        raise NoneKept(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoneKept(f"{path} cannot be read: {error}") from error
    return replace(sources, files=layers)


def _path(sources: Sources) -> Path:
    tree, _ = merge([*environment_layers(sources.environment), *sources.overrides])
    state = tree.get("state")
    folder = state.get("dir") if isinstance(state, dict) else None
    own = Path(folder) if isinstance(folder, str) and folder.startswith("/") else STATE_DIR
    return (beside_for_slurm(own) if os.geteuid() == 0 else own) / NAME


def _trusted(path: Path) -> bytes:
    """Read the copy. Raises OSError, and NoneKept if another user could have written it."""
    for each in (path.parent, path):
        status = each.lstat()
        if (
            status.st_uid != os.geteuid()
            or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            or stat.S_ISLNK(status.st_mode)
        ):
            raise NoneKept(f"users other than uid {os.geteuid()} can write {each}")
    data = read_regular(path, _BYTES_MOST + 1)
    if len(data) > _BYTES_MOST:
        raise NoneKept(f"{path} is too large")
    return data
