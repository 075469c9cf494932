"""Parser for the YAML of a web-config file: texts, flags and empty values, without type guessing or duplicate keys.

Loaded only if such a file is configured.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

Tree = dict[str, Any]


class YamlError(Exception):
    """The file is not YAML, or not a table. The message has the line but quotes nothing, which may be a secret."""


class _Loader(yaml.SafeLoader):
    """Loader in which plain scalars are text unless flags or empty. The caller converts them to the type of the key."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's interface

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: ARG002
        table: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                raise yaml.MarkedYAMLError(problem="a key that is not text", problem_mark=key_node.start_mark)
            if key_node.value in table:
                raise yaml.MarkedYAMLError(problem="a duplicate key", problem_mark=key_node.start_mark)
            table[key_node.value] = self.construct_object(value_node, deep=True)
        return table


_FLAG = r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$"
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(_FLAG), list("yYnNtTfFoO"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_DEPTH_MAX = 3  # tables within tables: the format has two


def parse(text: str) -> Tree:
    """Return the tables of the file without empty values. Raises YamlError."""
    try:
        tree = yaml.load(text, _Loader)  # noqa: S506 - a safe loader with even fewer types
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise YamlError(f"expected YAML{where}: {_problem(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"expected YAML, found something else ({type(error).__name__})") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise YamlError("expected a table with keys such as tls_server_config and basic_auth_users")
    return _without_empty(tree)


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Describe what the parser expected, without the text that it found instead."""
    return re.sub(r"('[^']*'|\"[^\"]*\")", "…", error.problem or error.context or "it cannot be read")


def _without_empty(tree: Tree, depth: int = 1) -> Tree:
    """Remove keys without a value, which count as absent."""
    return {
        key: _without_empty(value, depth + 1) if isinstance(value, dict) and depth < _DEPTH_MAX else value
        for key, value in tree.items()
        if value is not None
    }
