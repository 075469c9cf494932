"""The features: what gpuwarden does with its verdict, and what else it does. The one list of them.

A feature is a folder beside this file. Core takes the tables that it finds there and knows no feature by name: the packages on the right
each read the module of one name below, in every folder that has it, and import nothing else of a feature. What a feature imports is
therefore loaded only where it is used. Contracts in pyproject.toml hold both directions: core imports this list and no feature, and no
feature imports another.

    module       core reads                                         read by
    conditions   CONDITIONS, TO_DO, RUNBOOKS                        health: rows of findings, what to do about each, and its page of runbooks
    memory       KINDS, EMPTY, fold, events                         health: what the feature remembers, as a fold of events
    detectors    DETECTORS, follow                                  health: one detector for each condition; what each step learns
    set_aside    is_own, without_own                                health: what it does to the GPUs itself, and is no finding
    options      TABLES; misfits, excludes, repairs, if it has any  config: the tables of its keys
    register     register                                           actuators: an actuator that knows all nodes
    actuator     actuator                                           actuators: an actuator that knows this node alone
    sources      source                                             collect: what is read of this host for it
    verbs        VERBS                                              cli: commands, each with the module that has it
    doctor       CHECKS                                             doctor: checks of this host
    log_lines    LINES                                              engine: the log line of each kind of its events
    events       NAMELESS, NOTIFIED                                 publish, notify: what of its events leaves the daemon
    snapshot     shown; looked_at, if it has any                    engine, publish: what of its memory is published, and where it looked
    metrics      METRICS                                            publish: rows of metrics
    status       document                                           publish: its keys of the status document
    status_text  sections                                           cli: titled lines of `gpuwarden status`
    reasons      REASONS                                            cli: what `gpuwarden explain` says of words of its status
    daemon       part                                               runtime: what it adds to the running daemon
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from importlib import import_module
from typing import Any

FEATURES: Mapping[str, frozenset[str]] = {
    name: frozenset(modules.split())
    for name, modules in {
        "evacuation": "doctor log_lines metrics status status_text daemon",
        "active_test": "conditions memory detectors set_aside options verbs doctor log_lines snapshot metrics status status_text reasons daemon",
        "repair": "memory options verbs doctor log_lines events metrics status status_text reasons daemon",
        "job_stall": "conditions memory detectors",
        "slurm": "options register daemon doctor verbs",
        "kubernetes": "options register daemon doctor sources",
        "file": "options actuator",
        "dstack": "options verbs doctor",
        "nvhcd": "options verbs",
        "why": "conditions memory detectors log_lines events snapshot verbs metrics status status_text daemon",
        "bundle": "memory options verbs log_lines snapshot status status_text doctor daemon",
        "black_box": "options log_lines metrics status status_text daemon",
    }.items()
}
"""Which modules of the table above each feature has. The order of features is that of rows in documents, and that in
which parts of the daemon stop: evacuation is first, since a machine that ends leaves little time."""


class Excludes(Enum):
    """How a feature excludes this node, if its options want that."""

    NOT = auto()
    BY_REGISTER = auto()
    """By its own actuator, which can read all nodes and counts them for the breaker."""
    BY_ACTUATOR = auto()
    """By its own actuator, which can read only this node."""
    BY_MARKER = auto()
    """By a marker of the daemon, which a process of the feature reads."""


def parts(module: str, among: Collection[str] = FEATURES) -> dict[str, Any]:
    """Import the module of this name of each feature that has it. Returns the modules by feature.

    `among`: the names of the features that count.
    """
    return {
        name: import_module(f"gpuwarden.features.{name}.{module}")
        for name, own in FEATURES.items()
        if module in own and name in among
    }
