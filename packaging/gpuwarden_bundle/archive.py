"""The tree as an archive: `gpuwarden/` with its Python, and in `gpuwarden/system` what the packages install elsewhere."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from gpuwarden_deb.paths import HOME, BuildError

TOP = HOME.name
_WITHIN = 600.0


def archive(root: Path, file: Path, *, epoch: int, level: int = 3) -> None:
    """Everything belongs to root, and no file is younger than the tree: the same tree gives the same bytes. Raises BuildError."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = min(int(member.mtime), epoch)
        return member

    home = root / HOME.relative_to("/")
    command = ["zstd", "--quiet", "--stdout", "--threads=0", f"-{level}"]
    with file.open("wb") as output, tempfile.TemporaryFile() as errors:
        compress = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors)
        assert compress.stdin is not None
        with (
            suppress(BrokenPipeError),  # zstd ended early, and has written why
            compress.stdin as pipe,
            tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            tar.add(home, TOP, filter=owned)
            tar.addfile(_folder(f"{TOP}/system", epoch))
            for top in sorted(root.iterdir()):
                if top.name not in (HOME.parts[1], "DEBIAN"):
                    tar.add(top, f"{TOP}/system/{top.name}", filter=owned)
        if compress.wait(_WITHIN) != 0:
            errors.seek(0)
            raise BuildError(
                f"the archive {file} cannot be written: {errors.read(1000).decode(errors='replace').strip()}"
            )


def _folder(name: str, epoch: int) -> tarfile.TarInfo:
    """A folder that is in no tree. Without an entry tar gives it the umask of who unpacks, which a copy then gives to `/`."""
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, epoch
    member.uname = member.gname = "root"
    return member
