"""Recorded PCI trees, unpacked into a folder that a collector reads as its sysfs.

A tree is one text file in tests/data/pci: a line for each function, `slot attribute=value …`, with `@name` for the
attributes that lines `@name attribute=value …` gave. `config` is hexadecimal, `driver` becomes a link, a semicolon in
a value a new line.
"""

from __future__ import annotations

import shlex
from pathlib import Path

DATA = Path(__file__).parents[1] / "data/pci"


def unpack(name: str, sysfs: Path) -> Path:
    templates: dict[str, dict[str, str]] = {}
    for line in (DATA / f"{name}.txt").read_text(encoding="ascii").splitlines():
        head, *words = shlex.split(line, comments=True) or [""]
        attributes: dict[str, str] = {}
        for word in words:
            key, _, value = word.partition("=")
            attributes |= templates[key] if key.startswith("@") else {key: value}
        if head.startswith("@"):
            templates.setdefault(head, {}).update(attributes)
        elif head:
            add_function(sysfs, head, **attributes)
    return sysfs


def add_function(sysfs: Path, slot: str, **attributes: str) -> Path:
    """A function with exactly these attributes; the folder they are in."""
    folder = sysfs / "devices/pci0000:00" / slot
    folder.mkdir(parents=True)
    for name, value in attributes.items():
        if name == "driver":
            (folder / name).symlink_to(f"../../../bus/pci/drivers/{value}")
        elif name == "config":
            (folder / name).write_bytes(bytes.fromhex(value).ljust(64, b"\0"))
        else:
            (folder / name).write_text(value.replace(";", "\n") + "\n", encoding="utf-8")
    links = sysfs / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / slot).symlink_to(f"../../../devices/pci0000:00/{slot}")
    return folder
