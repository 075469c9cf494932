"""Whether the Prometheus that counts for the breaker answers, and knows this node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gpuwarden.config import Config
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.prometheus.access import AccessError, Hints, access
from gpuwarden.prometheus.client import PrometheusError, ask
from gpuwarden.secrets_file import SecretError, SecretFile

ANSWERS_WITHIN = 8.0
_HINTS = Hints("is breaker.prometheus right?", "give breaker.prometheus_token or breaker.prometheus_basic")


def prometheus(config: Config) -> Iterator[Row]:
    options = config.breaker
    if not options.prometheus:
        yield ok("host", "prometheus", "none is asked (breaker.prometheus)")
        return
    names = (options.prometheus_token, options.prometheus_basic)
    more = f",{options.prometheus_match}" if options.prometheus_match else ""
    us = f"gpuwarden_node_info{{node={json.dumps(config.node)}{more}}}"
    all_ = f"gpuwarden_node_info{{{options.prometheus_match}}}"
    try:
        token, basic = (_path(name) for name in names)
        reached = access(options.prometheus, token=token, basic=basic, ca=options.prometheus_ca, hints=_HINTS)
        answers = ask(reached, {"us": f"count({us})", "all": f"count({all_})"}, ANSWERS_WITHIN)
    except (AccessError, PrometheusError, SecretError) as error:
        to_do = "correct [breaker] prometheus…: until it answers no failure holds this node out"
        yield fail("host", "prometheus", str(error), to_do)
    else:
        nodes = int(sum(sample.value for sample in answers.samples["all"]))
        found = f"{options.prometheus} answers and knows {nodes} nodes"
        if not answers.samples["us"]:
            to_do = "let it scrape this node, and see that breaker.prometheus_match fits it"
            yield warn("host", "prometheus", f"{found}, but not {config.node}", to_do)
        else:
            yield ok("host", "prometheus", found)
    for name in filter(None, names):
        try:
            trouble = name.exposed()
        except SecretError:
            continue  # told above
        if trouble:
            yield warn("host", "secret", trouble.partition(":")[0], trouble.partition(": ")[2])


def _path(secret: SecretFile | None) -> Path | None:
    return None if secret is None else secret.path()
