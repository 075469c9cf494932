"""The image's files below gpuwarden: Debian packages, extracted and never installed, so that no package manager is in it.

What their scripts would have made is in `MADE`. A dependency that a later point release of Debian adds is taken whole: nothing is lost in silence.
"""

from __future__ import annotations

import fnmatch
import re
import tarfile
from collections.abc import Iterator

from gpuwarden_deb.contents import DOC
from gpuwarden_deb.paths import BuildError

SUITE = "bookworm"
PYTHON = "3.11"
"""The suite's own."""
WANTED = (f"python{PYTHON}", "coreutils", "ca-certificates", "base-files", "libgcc-s1", "libstdc++6")
LEFT_OUT = frozenset(
    {
        *("debconf", "dpkg", "mawk", "tar", "openssl", "libmd0", "libgmp10", "libacl1", "libattr1"),  # of scripts that do not run
        *("libreadline8", "readline-common", "libncursesw6", "libtinfo6"),  # a prompt
        *("libnsl2", "libtirpc3", "libtirpc-common", "libgssapi-krb5-2", "libk5crypto3", "libkrb5-3", "libkrb5support0"),  # NIS
        *("libkeyutils1", "libcom-err2", "libdb5.3"),
    }
)  # fmt: skip
"""What dependencies bring and nothing here calls; the modules of Python that need it are in `DROPPED`."""
ONLY = {
    "coreutils": ("/usr/bin/stat",),  # the storage collector runs it, since stat(2) of a dead mount never returns
    "base-files": ("/etc/debian_version", "/etc/os-release", "/usr/lib/os-release", "/usr/share/common-licenses/*"),
    "ca-certificates": ("/usr/share/ca-certificates/*",),
}
"""Of these packages nothing else, but for their copyright."""
DROPPED = (
    *("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/lintian/*", "/usr/share/bug/*"),
    *("/usr/share/applications/*", "/usr/share/pixmaps/*", "/usr/share/binfmts/*", "/usr/share/perl5/*"),
    *("/usr/lib/*/gconv/*", "/usr/share/python3/*", "/usr/lib/binfmt.d/*", "/usr/share/doc-base/*"),
    *("/usr/share/gcc/*", "/usr/share/gdb/*"),
    *(f"/usr/lib/python{PYTHON}/{name}/*" for name in ("idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo")),
    *(f"/usr/lib/python{PYTHON}/lib-dynload/{name}.*" for name in ("nis", "readline", "_curses*", "_dbm")),
    *(f"/usr/bin/{name}" for name in ("pdb*", "pydoc*", "pygettext*", "ld.so", "catchsegv")),
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MADE = {
    "/etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\ngpuwarden:x:991:991:gpuwarden:/:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\ngpuwarden:x:991:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",  # NVIDIA's toolkit runs the host's ldconfig in here
}
LINKS = {"/usr/lib/ssl/cert.pem": CERTIFICATES, "/usr/lib/ssl/certs": "/etc/ssl/certs"}
FOLDERS = {
    "/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755, "/run/gpuwarden": 0o755, "/var/lib/gpuwarden": 0o755, "/etc/gpuwarden": 0o755,
    "/proc": 0o555, "/sys": 0o555, "/dev": 0o755, "/host": 0o755,
}  # fmt: skip
"""They exist in a read-only image: mounts need them."""

LISTING = "packages"
"""A folder of the tree while it is made, with what each package has."""
_UNOWNED = ("/bin", "/sbin", "/lib", "/lib64", "/usr/bin/gpuwarden")
_COPYRIGHT = re.compile(r"/usr/share/doc/[^/]+(/copyright)?")
"""Or the folder, as a link to that of another package."""
_COMPILED = re.compile(r"/__pycache__/([^/]+)\.cpython-\d+\.pyc$")


class Packages:
    """Those of an archive that `make` wrote: which of their files are in the image."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self.control: dict[str, str] = {}
        self._owners: dict[str, set[str]] = {}
        for member in archive:
            folder, _, name = member.name.removeprefix("./").partition("/")
            if folder != LISTING or not member.isfile():
                continue
            text = _text(archive, member)
            package, _, kind = name.rpartition(".")
            if kind == "control":
                self.control[package] = text
            else:
                for line in text.splitlines():
                    self._owners.setdefault(_merged(line.removeprefix(".").rstrip("/")), set()).add(package)
        if missing := {"libc6", *WANTED} - set(self.control):
            raise BuildError(f"mmdebstrap extracted no {', no '.join(sorted(missing))}")

    def taken(self, path: str) -> bool:
        """Whether the file at this path belongs into the image."""
        path = _COMPILED.sub(r"/\1.py", path)
        owners = self._owners.get(path, set())
        if not owners:
            return path in _UNOWNED or path.startswith(("/opt/", f"/{DOC}/"))
        wanted = owners - LEFT_OUT
        if _COPYRIGHT.fullmatch(path):
            return bool(wanted)
        if path.startswith("/usr/share/doc/") or any(fnmatch.fnmatch(path, pattern) for pattern in DROPPED):
            return False
        return any(_wanted_of(package, path) for package in wanted)

    def status(self) -> Iterator[tuple[str, str]]:
        """What a scanner of images reads, since there is no dpkg: a file for each package in the image."""
        for package, control in sorted(self.control.items()):
            if package not in LEFT_OUT:
                yield f"/var/lib/dpkg/status.d/{package}", control.rstrip() + "\n"


def _wanted_of(package: str, path: str) -> bool:
    return package not in ONLY or any(fnmatch.fnmatch(path, pattern) for pattern in ONLY[package])


def _merged(path: str) -> str:
    """/lib and the like are links into /usr."""
    top = path.split("/")[1] if path.count("/") > 1 else ""
    return f"/usr{path}" if top in {"bin", "sbin", "lib", "lib64"} else path


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    opened = archive.extractfile(member)
    return opened.read().decode() if opened else ""
