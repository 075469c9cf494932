"""What a worker process gets from this host: a user, a new environment, and a folder for what the driver compiles."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwarden.base.paths import kernel_cache
from gpuwarden.features.active_test.tester.worker import Identity

USER = "gpuwarden"
"""User that workers run as if root starts the test and the package has created this user."""
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_NOWHERE = "/nonexistent"


def identity() -> Identity:
    """uid, gid and supplementary groups for worker processes. Supplementary groups are kept because GPU access may depend on them."""
    if os.geteuid() != 0:
        return Identity()
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return Identity()
    return Identity(uid=user.pw_uid, gid=user.pw_gid, groups=tuple(os.getgrouplist(USER, user.pw_gid)))


@contextmanager
def cache_folder(state_dir: Path, worker: Identity) -> Iterator[Path | None]:
    """Yield a folder that only the worker's user can enter. The driver loads code from it, so it is never a user's
    ~/.nv.

    If there can be no lasting one, it is a folder of this run alone; then every kernel is compiled again, which takes
    0.5 to 1.5 s. Workers also take turns by a lock on it.
    """
    lasting = _private(kernel_cache(state_dir), worker)
    if lasting is not None:
        yield lasting
        return
    with tempfile.TemporaryDirectory(prefix="gpuwarden-test-", ignore_cleanup_errors=True) as folder:
        yield _private(Path(folder), worker)


def _private(path: Path, worker: Identity) -> Path | None:
    """Return the folder, created for that user if missing; None if another user owns it or may enter it."""
    uid = os.geteuid() if worker.uid is None else worker.uid
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(folder)
        if status.st_uid == os.geteuid() != uid:
            os.fchown(folder, uid, -1 if worker.gid is None else worker.gid)
            status = os.fstat(folder)
    except OSError:
        return None
    else:
        return path if status.st_uid == uid and not stat.S_IMODE(status.st_mode) & 0o077 else None
    finally:
        os.close(folder)


def environment(cache: Path | None) -> dict[str, str]:
    """Return the environment of workers, without anything of the caller's.

    Each worker itself sets which GPUs CUDA shows, and that it uses no MPS server.
    """
    made = {"PATH": _PATH, "LC_ALL": "C", "HOME": _NOWHERE}
    return made if cache is None else {**made, "CUDA_CACHE_PATH": str(cache)}
