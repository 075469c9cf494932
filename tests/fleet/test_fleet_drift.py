"""`gpuwarden fleet --drift`: what differs among nodes that should be alike, and is named; and what does not differ, and is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.fleet.drift import ITEMS, Drift, drift
from gpuwarden.fleet.model import Key, Row
from gpuwarden.fleet.queries import QUERIES, WHY_QUERIES
from gpuwarden.fleet.status import Status
from gpuwarden.publish.metrics.machine import MACHINE_LABELS, machine_labels
from gpuwarden_collectors.host_facts import AdapterFacts, InfinibandFacts
from support.commands import gpuwarden
from support.prometheus_script import Answer, api_server, series, vector

NOW = 1_800_000_000.0
DGX = {"machine_type": "DGX", "model": "H100", "driver": "580.1", "vbios": "96.1", "kernel": "6.8.0-60"}
NVL72 = {**DGX, "machine_type": "NVL72", "model": "GB200", "cluster_uuid": "c1", "clique": "0"}


def found(*machines: dict[str, str], cluster: str = "") -> list[Drift]:
    rows = [
        Row(cluster=cluster, job="g", instance=f"n{n}", node=f"n{n}", status=Status.HEALTHY)
        for n in range(len(machines))
    ]
    labels: dict[Key, dict[str, str]] = {row.key: of for row, of in zip(rows, machines, strict=True)}
    return drift(rows, labels)


def test_the_few_are_named_and_the_value_of_most_is_the_measure() -> None:
    (difference,) = found(*[DGX] * 6, DGX | {"vbios": "95.9"}, DGX | {"vbios": "95.9+96.1"}, DGX)
    assert (difference.group, difference.item, difference.nodes, difference.most, difference.having) == (
        "DGX, H100",
        "vbios",
        9,
        "96.1",
        7,
    )
    assert difference.others == {"95.9": ("n6",), "95.9+96.1": ("n7",)}


def test_machines_of_other_types_and_models_may_differ() -> None:
    other = DGX | {"machine_type": "HGX", "driver": "570.1", "kernel": "5.15"}
    assert found(DGX, DGX, other, other, DGX | {"model": "H200", "vbios": "97"}) == []


def test_what_is_not_known_differs_from_nothing() -> None:
    assert found(DGX, DGX | {"vbios": "", "driver": ""}, {"driver": "1"}, {}) == []


def test_a_domain_with_two_drivers_comes_first_and_clique_0_is_one() -> None:
    domain, alike = found(*[NVL72] * 17, NVL72 | {"driver": "570.1"})
    assert (domain.domain, domain.group, domain.item) == (True, "NVLink domain c1 clique 0", "driver")
    assert (domain.having, domain.others) == (17, {"570.1": ("n17",)})
    assert (alike.domain, alike.others) == (False, {"570.1": ("n17",)})


def test_a_domain_is_compared_by_all_that_machines_of_a_type_are() -> None:
    other = dict.fromkeys(ITEMS, "other")
    here = NVL72 | dict.fromkeys(ITEMS, "most")
    domain = [difference.item for difference in found(here, here, here | other) if difference.domain]
    assert domain == list(ITEMS)
    assert {"driver", "vbios", "inforom", "adapter_firmware", "kernel"} == set(domain)


def test_an_inforom_that_few_have_is_named() -> None:
    (difference,) = found(*[DGX | {"inforom": "G520.0200.00.05"}] * 3, DGX | {"inforom": "G520.0200.00.04"}, DGX)
    assert (difference.item, difference.most, difference.having, difference.nodes) == (
        "inforom",
        "G520.0200.00.05",
        3,
        4,
    )
    assert difference.others == {"G520.0200.00.04": ("n3",)}


def test_a_domain_spans_types_of_machines_but_not_cliques() -> None:
    assert found(NVL72, NVL72 | {"clique": "1", "machine_type": "other", "driver": "570.1"}) == []
    (difference,) = found(NVL72, NVL72 | {"machine_type": "other", "driver": "570.1"})
    assert difference.domain


def test_firmware_of_adapters_is_compared_by_board() -> None:
    ports = InfinibandFacts(
        adapters=tuple(
            AdapterFacts(slot=f"0000:{n}:00.0", device=f"mlx5_{n}", board="MT_0001" if n else "", firmware=version)
            for n, version in enumerate(("22.1", "28.41", "28.41", ""))
        )
    )
    labels = dict(zip(MACHINE_LABELS, machine_labels("x", None, kernel="6.8", infiniband=ports), strict=True))
    assert (labels["kernel"], labels["adapter_firmware"]) == ("6.8", "22.1+MT_0001 28.41")


# --- the command


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def port(warnings: list[str]) -> Iterator[int]:
    names = {text: name for name, text in (QUERIES | WHY_QUERIES).items()}
    of = [{"job": "gpuwarden", "instance": f"n{n}", "cluster": "east" if n < 3 else "west"} for n in range(5)]
    machines = [labels | DGX | ({"driver": "570.1"} if n == 2 else {}) for n, labels in enumerate(of)]
    samples = {
        "nodes": [
            series(NOW, 1, labels | {"node": f"gpu-{n}"})
            for n, labels in enumerate([*of, {**of[0], "instance": "n5", "cluster": "north"}])
        ],
        "machines": [series(NOW, 1, labels) for labels in machines[1:]],
        "machines_before": [series(NOW, 1, machines[0])],
    }

    def respond(path: str, query: str, headers: dict[str, str]) -> Answer:
        return vector(samples.get(names[query], []), warnings)

    with api_server(respond) as port:
        yield port


def test_the_command_names_nodes_and_its_code_says_whether_any_differs(port: int, tmp_path: Path) -> None:
    words = ("fleet", "--prometheus", f"http://127.0.0.1:{port}", "--drift")
    done = gpuwarden(*words, temporary=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "1 difference among 5 nodes that should be alike",
        "",
        "GROUP            ITEM    MOST HAVE        OTHERS",
        "east, DGX, H100  driver  580.1 on 2 of 3  570.1 on gpu-2",
    ]
    assert "1 of 6 nodes are not compared" in done.stderr
    (difference,) = json.loads(gpuwarden(*words, "--json", temporary=tmp_path).stdout)["drift"]
    assert difference["others"] == {"570.1": ["gpu-2"]}
    west = gpuwarden(*words, "--cluster", "west", temporary=tmp_path)
    assert (west.returncode, west.stdout) == (0, "0 differences among 2 nodes that should be alike\n")
    assert west.stderr == ""
    north = gpuwarden(*words, "--cluster", "north", temporary=tmp_path)
    assert "1 of 1 nodes are not compared: their machine type or GPU model is not known" in north.stderr


def test_what_is_not_compared_is_said(port: int, warnings: list[str], tmp_path: Path) -> None:
    warnings.append("store s2 is away")
    words = ("fleet", "--prometheus", f"http://127.0.0.1:{port}", "--drift")
    assert "Prometheus warns: store s2 is away" in gpuwarden(*words, temporary=tmp_path).stderr
    notes = json.loads(gpuwarden(*words, "--json", temporary=tmp_path).stdout)["notes"]
    assert [note.partition(":")[0] for note in notes] == ["Prometheus warns", "1 of 6 nodes are not compared"]
