"""What the wheel's metadata shows as the README: the same text, with links that lead somewhere outside of a checkout.

`project.urls.Repository` in pyproject.toml is the one place that names where the tree is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """Markdown whose relative links and pictures lead to the main branch of `repository`."""

    def found(link: re.Match[str]) -> str:
        picture, title, path = link.groups()
        return f"{picture}[{title}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(found, text)


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        repository = metadata["urls"]["Repository"]
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
