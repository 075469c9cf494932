"""The RPM of a tree, by rpmbuild. What it requires comes from `baseline`: rpm's own generators would also offer the Python packages inside to others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuwarden_bundle.baseline import Need, rpm_capabilities
from gpuwarden_deb.contents import CONFIGURATION, scripts
from gpuwarden_deb.control import BUNDLE, DESCRIPTION, SUMMARY, debian_version
from gpuwarden_deb.environment import run
from gpuwarden_deb.paths import HOME

_ZSH = ("usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions")
"""Where zsh has completions on Debian, and elsewhere."""
_ALWAYS = ("Requires: /bin/sh", "Requires: systemd", "Requires(post,posttrans,preun): systemd")
"""systemd before the scripts that call it: an installer puts it and gpuwarden on a new host in one transaction."""
_PREAMBLE = """\
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%global _binary_payload w{level}.zstdio
%global _buildhost localhost
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
Name: {name}
Version: {version}
Release: 1
Summary: {summary}
License: {licence}
AutoReqProv: no
{requires}
%description
{description}
%install
cp -a {root}/. %{{buildroot}}
"""


def rpm(
    root: Path,
    output: Path,
    machine: str,
    *,
    version: str,
    licence: str,
    needs: Sequence[Need],
    epoch: int,
    level: int = 3,
) -> Path:
    """The RPM, for that `machine` (as `uname -m` names it), in the folder `output`. `root` is used up: it is laid out as RHEL has it. Raises BuildError."""
    if (root / _ZSH[0]).exists():
        (root / _ZSH[1]).parent.mkdir(parents=True, exist_ok=True)
        (root / _ZSH[0]).rename(root / _ZSH[1])
    requires = "".join(f"{line}\n" for line in (*_ALWAYS, *(f"Requires: {each}" for each in rpm_capabilities(needs))))
    text = _PREAMBLE.format(
        level=level, name=BUNDLE, version=debian_version(version), summary=SUMMARY, description=DESCRIPTION, licence=licence,
        requires=requires, root=root,
    )  # fmt: skip
    text += "".join(f"%{name}\n{_escaped(script)}" for name, script in scripts(root, "rpm").items())
    text += "%files\n%defattr(-,root,root,-)\n" + "".join(f"{line}\n" for line in _files(root))
    top = root.parent / "rpm"
    top.mkdir()
    (top / "gpuwarden.spec").write_text(text)
    define = (
        f"_topdir {top}",
        f"_tmppath {top}",
        f"_rpmdir {top}",
        "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
    )
    options = [word for each in define for word in ("--define", each)]
    run("rpmbuild", "-bb", "--quiet", f"--target={machine}-linux", *options, str(top / "gpuwarden.spec"), epoch=epoch)
    (made,) = top.glob("*.rpm")
    shutil.move(made, output / made.name)
    shutil.rmtree(top)
    return output / made.name


def _escaped(text: str) -> str:
    """Double percent signs, which rpm expands in scripts, too."""
    return text.replace("%", "%%")


def _files(root: Path) -> Iterator[str]:
    """Every file; of the folders, those that are gpuwarden's alone."""
    yield f'"{HOME}"'
    for file in sorted(root.rglob("*")):
        path = f"/{file.relative_to(root)}"
        if file.is_relative_to(root / HOME.relative_to("/")) or path == str(HOME.parent):
            continue
        if file.is_dir() and not file.is_symlink():
            if BUNDLE in path:
                yield f'%dir "{path}"'
        else:
            yield f'{"%config(noreplace) " if path == f"/{CONFIGURATION}" else ""}"{path}"'
