"""The list of the daemon's components that can fail, with the condition of each failure.

This table defines the finding, the sample of `gpuwarden_component_up` and the status line of each component. The daemon
must report the state of each one (`ComponentErrors`). The values are names in metrics and traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from gpuwarden_collectors.facts import Stamp


class Component(StrEnum):
    LEDGER = "ledger"
    KERNEL_LOG = "kernel_log"
    JOB_LABELS = "job_labels"  # files of jobs for the label hpc_job
    VERDICT = "verdict"  # the verdict file
    NOTICE = "notice"  # notice.json and the job socket
    CONTROL = "control"  # the socket for operators
    SLURM = "slurm"  # files for Slurm's scripts and for dcgm-exporter's job mapping
    ACTUATOR = "actuator"  # refuses permanently
    ACTUATOR_AWAY = "actuator_away"
    EXCLUSION = "exclusion"  # gpuwarden's own, on a healthy node, that only a person can lift
    NOTIFY = "notify"
    WEB = "web"
    PORT = "port"  # of heartbeat and metrics
    CONFIG_FAULTY = "config_faulty"
    BLACK_BOX = "black_box"  # the ring and the frozen boxes on disk
    FEATURE = "feature"  # an internal error of a feature


CONDITION_OF: Mapping[Component, str] = {
    Component.LEDGER: "ledger_unavailable",
    Component.KERNEL_LOG: "collector_failed",
    Component.JOB_LABELS: "collector_failed",
    Component.VERDICT: "output_failed",
    Component.NOTICE: "output_failed",
    Component.CONTROL: "output_failed",
    Component.SLURM: "output_failed",
    Component.ACTUATOR: "actuator_refused",
    Component.ACTUATOR_AWAY: "actuator_unreachable",
    Component.EXCLUSION: "exclusion_stuck",
    Component.NOTIFY: "notification_refused",
    Component.WEB: "web_config_faulty",
    Component.PORT: "output_failed",
    Component.CONFIG_FAULTY: "config_faulty",
    Component.BLACK_BOX: "output_failed",
    Component.FEATURE: "feature_failed",
}
NAMED = ("collector_failed", "output_failed")
"""Conditions with a separate finding for each component, named after it."""


Source = Callable[[Stamp], str]


class ComponentErrors:
    """Sources of the error of each component; "" if it works. Raises ValueError unless every component has a source."""

    def __init__(self, *sources: Mapping[Component, Source]) -> None:
        """Take the sources of all parts. If several parts have a source for a component, their errors are joined."""
        self._sources = {
            component: [source[component] for source in sources if component in source] for component in Component
        }
        if missing := [component for component, error_sources in self._sources.items() if not error_sources]:
            raise ValueError(f"no source for the state of {', '.join(sorted(missing))}")

    def at(self, now: Stamp) -> dict[str, str]:
        """Return the errors at `now` of the components that do not work, by component."""
        texts = {
            component: "; ".join(filter(None, (source(now) for source in error_sources)))
            for component, error_sources in self._sources.items()
        }
        return {component.value: text for component, text in texts.items() if text}


def errors_of(code: str, errors: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the detail of the finding and the error, for each failed component whose condition is `code`."""
    for component, condition in CONDITION_OF.items() if errors else ():
        if condition == code and (text := errors.get(component, "")):
            yield component if code in NAMED else "", text
