"""The example configuration: every key there is, at its default, as a comment. Made of the classes of the configuration."""

from __future__ import annotations

from gpuwarden.config.model import Config
from gpuwarden.config.render import as_toml

_NODE = "gpu-node01"  # the default is the name of the host, and there is none to be had here
_HEAD = """\
# Every key of gpuwarden that has a default, at its default. Copy what you change into /etc/gpuwarden/gpuwarden.toml, or
# into a file of its own in /etc/gpuwarden/conf.d, with the head of its table. `gpuwarden config check` lists all faults at once.
# Tables of a site's own ([plugins.NAME], [checks.CODE], [xids.N], [sxids.N], [jobs.rules.NAME], [notify.webhook.NAME],
# [notify.exec.NAME]): see the files of ../docs: use/site-checks.md, use/termination.md, use/exclusion.md, reference/conditions.md,
# reference/xids.md.
"""


def example() -> str:
    return _HEAD + "".join(map(_commented, as_toml(Config(node=_NODE), {}).splitlines()))


def _commented(line: str) -> str:
    """Heads of tables too: what is uncommented by itself would else fall into the table before."""
    setting = line.removesuffix("# default").rstrip()
    if not setting:
        return "\n"
    return f"{setting}\n" if setting.startswith("#") else f"#{setting}\n"
