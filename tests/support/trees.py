"""Recorded trees of small files, as in /sys, planted in a folder that a collector reads as its root.

A tree is one text file: a line for each folder, `folder file=content …`, with `@name` for the files that lines
`@name file=content …` gave.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def plant(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")


def unpack(name: str, root: Path) -> Path:
    templates: dict[str, dict[str, str]] = {}
    for line in (DATA / name).read_text(encoding="ascii").splitlines():
        head, *words = shlex.split(line, comments=True) or [""]
        files: dict[str, str] = {}
        for word in words:
            key, _, content = word.partition("=")
            files |= templates[key] if key.startswith("@") else {key: content}
        if head.startswith("@"):
            templates.setdefault(head, {}).update(files)
        elif head:
            plant(root / head, files)
    return root
