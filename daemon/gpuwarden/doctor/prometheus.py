"""Checks that the breaker's Prometheus responds and has series of this node."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpuwarden.actuators.prometheus_count import access_of
from gpuwarden.config.model import Config
from gpuwarden.config.secrets import SecretError
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.prometheus.access import AccessError
from gpuwarden.prometheus.client import PrometheusError, query

RESPONSE_WITHIN = 8.0


def prometheus(config: Config) -> Iterator[Row]:
    options = config.breaker
    if not options.prometheus:
        yield ok("prometheus", "none is configured (breaker.prometheus)")
        return
    more = f",{options.prometheus_match}" if options.prometheus_match else ""
    us = f"gpuwarden_node_info{{node={json.dumps(config.node)}{more}}}"
    all_ = f"gpuwarden_node_info{{{options.prometheus_match}}}"
    try:
        results = query(access_of(options), {"us": f"count({us})", "all": f"count({all_})"}, RESPONSE_WITHIN)
    except (AccessError, PrometheusError, SecretError) as error:
        to_do = "correct [breaker] prometheus…: until it responds this node is not excluded for failures"
        yield fail("prometheus", str(error), to_do)
    else:
        nodes = int(sum(sample.value for sample in results.samples["all"]))
        state = f"{options.prometheus} responds and has {nodes} nodes"
        if not results.samples["us"]:
            to_do = "let this Prometheus scrape this node, and check that breaker.prometheus_match matches the node"
            yield warn("prometheus", f"{state}, but not {config.node}", to_do)
        else:
            yield ok("prometheus", state)
    for secret in filter(None, (options.prometheus_token, options.prometheus_basic)):
        try:
            exposed = secret.exposed()
        except SecretError:
            continue  # reported above
        if exposed:
            yield warn("secret", exposed.partition(":")[0], exposed.partition(": ")[2])
