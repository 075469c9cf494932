"""What those who repair are told beside an exclusion: the advice, and the same in the words of each of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.memory import Moments, State, Track
from gpuwarden.health.model import Advice, Event, EventKind, Key, Latch, Pin, Severity, Subject, gpu, link
from gpuwarden.notify.messages import Origin, message
from gpuwarden.notify.repair import AZURE, AZURE_OTHERWISE, AZURE_REBOOT, CHECK, TERMS, repair
from gpuwarden_collectors.facts import Stamp

PAGE = Path(__file__).parents[2] / "docs/use/exclusion.md"
AT = Stamp(boottime=100.0, wall=1_772_366_400.25)
ORIGIN = Origin(node="n1", mode="enforce", boot_id="b")
GPU = Subject("gpu", "0000:1b:00.0")
CATEGORIES = frozenset(
    [
        "HpcMissingGpu",
        "MissingIB",
        "IBPerformance",
        "IBPortDown",
        "IBPortFlapping",
        "HpcGpuDcgmDiagFailure",
        "HpcRowRemapFailure",
        "HpcInforomCorruption",
        "HpcGenericFailure",
        "ManualInvestigation",
        "XID95UncontainedECCError",
        "XID94ContainedECCError",
        "XID79FallenOffBus",
        "XID48DoubleBitECC",
        "UnhealthyGPUNvidiasmi",
        "NvLink",
        "HpcDcgmiThermalReport",
        "ECCPageRetirementTableFull",
        "DBEOverLimit",
        "GpuXIDError",
        "AmdGpuResetFailed",
        "EROTFailure",
        "GPUMemoryBWFailure",
        "CPUPerformance",
    ]
)
"""Those of Microsoft's page "Impact categories for Guest Health Reporting (preview)"."""
ACTIONS = {
    "NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RUN_FIELDDIAG", "RESTART_VM", "RESTART_BM", "REPLACE_VM", "RUN_DCGMEUD",
    "RESTART_APP", "UNKNOWN",
}  # fmt: skip
"""Names of the enum RecommendedAction in NVSentinel's data-models/protobufs/health_event.proto."""
FIELDS = {
    "version": int, "agent": str, "componentClass": str, "checkName": str, "isFatal": bool, "isHealthy": bool, "message": str,
    "recommendedAction": str, "errorCode": list, "entitiesImpacted": list, "metadata": dict, "generatedTimestamp": str, "nodeName": str,
    "quarantineOverrides": dict, "drainOverrides": dict, "processingStrategy": str,
}  # fmt: skip
"""Fields of its message HealthEvent, and how protobuf writes them in JSON."""


def excluded(why: str = "failure", kind: EventKind = EventKind.EXCLUDED) -> Event:
    data = {"actuator": "slurm", "why": why, "reason": "gpuwarden: failure gpu=3 xid=79"}
    return Event(kind=kind, at=AT, boot_id="b", data=data)


def finding(code: str, advice: Advice, *, detail: str = "", severity: Severity = Severity.FAILURE) -> Track:
    return Track(
        key=Key(code, GPU, detail), severity=severity, advice=advice, latch=Latch.NONE, evidence={}, first_seen=AT, last_seen=AT, raised=True
    )  # fmt: skip


def state_of(*tracks: Track) -> State:
    return replace(State(), tracks={track.key: track for track in tracks})


def told(*tracks: Track, event: Event | None = None) -> Any:
    return repair(event or excluded(), "n1", state_of(*tracks), lambda _: False)


@pytest.mark.parametrize(
    ("advice", "hyperpod", "azure", "action", "fatal"),
    [
        (Advice.RESET_GPU, "Action:Reboot", AZURE_REBOOT, "RESTART_BM", True),
        (Advice.REBOOT, "Action:Reboot", AZURE_REBOOT, "RESTART_BM", True),
        (
            Advice.INSPECT_HARDWARE,
            "Action:Replace",
            "Resource.Hpc.Unhealthy.XID79FallenOffBus",
            "CONTACT_SUPPORT",
            True,
        ),
        (Advice.CONTACT_SUPPORT, "Action:Replace", "Resource.Hpc.Unhealthy.XID79FallenOffBus", "CONTACT_SUPPORT", True),
        (Advice.RESTART_SERVICE, "", "", "NONE", False),
        (Advice.FIX_CONFIGURATION, "", "", "NONE", False),
    ],
)
def test_each_advice_has_the_words_of_those_who_repair(
    advice: Advice, hyperpod: str, azure: str, action: str, fatal: bool
) -> None:
    words = told(finding("xid", advice, detail="79"))
    assert (words["advice"], words["hyperpod"], words["azure"]) == (advice.value, hyperpod, azure)
    assert (words["nvsentinel"]["recommendedAction"], words["nvsentinel"]["isFatal"]) == (action, fatal)
    assert words["findings"] == [f"xid.79@{GPU}"]


ON = {GPU.slot: Pin(slot=GPU.slot, uuid="GPU-3"), "0000:4f:00.0": Pin(slot="0000:4f:00.0", uuid="GPU-4")}
OTHER = replace(finding("xid", Advice.RESET_GPU, detail="46"), key=Key("xid", gpu("0000:4f:00.0"), "46"))
LINK = replace(finding("nvlink_down", Advice.RESET_GPU), key=Key("nvlink_down", link(GPU.slot, 3)))


@pytest.mark.parametrize(
    ("failures", "pins", "action", "named"),
    [
        ((finding("ecc_uncorrectable", Advice.RESET_GPU),), ON, "COMPONENT_RESET", "GPU-3"),
        ((finding("ecc_uncorrectable", Advice.RESET_GPU), finding("xid", Advice.RESET_GPU, detail="95")), ON, "COMPONENT_RESET", "GPU-3"),
        ((finding("ecc_uncorrectable", Advice.RESET_GPU), OTHER), ON, "RESTART_BM", ""),
        ((LINK,), ON, "RESTART_BM", ""),
        ((finding("ecc_uncorrectable", Advice.RESET_GPU), LINK), ON, "RESTART_BM", ""),
        ((finding("ecc_uncorrectable", Advice.RESET_GPU),), {}, "RESTART_BM", ""),
        ((finding("ecc_uncorrectable", Advice.RESET_GPU), finding("xid", Advice.REBOOT, detail="79")), ON, "RESTART_BM", ""),
    ],
)  # fmt: skip
def test_nvsentinel_is_told_which_gpu_to_reset_or_else_to_reboot(
    failures: tuple[Track, ...], pins: dict[str, Pin], action: str, named: str
) -> None:
    words = repair(excluded(), "n1", replace(state_of(*failures), pins=pins), lambda _: False)
    assert words is not None
    sent: Any = words["nvsentinel"]
    assert (sent["recommendedAction"], sent["isFatal"]) == (action, True)
    assert sent["entitiesImpacted"] == ([{"entityType": "GPU_UUID", "entityValue": named}] if named else [])


def test_the_strongest_advice_counts_and_warnings_ask_for_nothing() -> None:
    warning = finding("inforom_invalid", Advice.CONTACT_SUPPORT, severity=Severity.WARNING)
    reset = finding("ecc_uncorrectable", Advice.RESET_GPU)
    assert told(warning, reset)["hyperpod"] == "Action:Reboot"
    both = told(warning, reset, finding("gpu_missing", Advice.INSPECT_HARDWARE))
    assert (both["hyperpod"], both["azure"]) == ("Action:Replace", "Resource.Hpc.Unhealthy.HpcMissingGpu")


def test_an_xid_without_a_category_of_its_own_is_any_xid_and_what_has_none_is_generic() -> None:
    assert told(finding("xid", Advice.CONTACT_SUPPORT, detail="64"))["azure"].endswith(".GpuXIDError")
    assert told(finding("power_brake", Advice.INSPECT_HARDWARE))["azure"].endswith(f".{AZURE_OTHERWISE}")


def test_a_consequence_and_a_check_in_shadow_ask_for_no_repair() -> None:
    cause, follower = finding("xid", Advice.RESET_GPU, detail="95"), finding("gpu_missing", Advice.INSPECT_HARDWARE)
    state = replace(state_of(cause, follower), moments=Moments(follows={follower.key: (cause.key, True)}))
    told_of = repair(excluded(), "n1", state, lambda _: False)
    assert told_of is not None
    assert told_of["hyperpod"] == "Action:Reboot"
    shadowed = repair(excluded(), "n1", state_of(cause, follower), lambda event: event.key == follower.key)
    assert shadowed is not None
    assert shadowed["findings"] == [str(cause.key)]


def test_a_failure_that_an_operator_overrode_asks_for_no_repair_beside_a_new_one() -> None:
    """A board that the operator works with must not be replaced since another one needs a reboot."""
    overridden, new = finding("gpu_missing", Advice.INSPECT_HARDWARE), finding("xid", Advice.REBOOT, detail="95")
    told_of = repair(excluded(), "n1", state_of(overridden, new), lambda _: False, {overridden.key})
    assert told_of is not None
    assert (told_of["hyperpod"], told_of["findings"]) == ("Action:Reboot", [str(new.key)])


@pytest.mark.parametrize("why", ["operator", "termination"])
def test_no_other_exclusion_asks_for_a_repair(why: str) -> None:
    assert told(finding("xid", Advice.REBOOT, detail="79"), event=excluded(why)) is None


@pytest.mark.parametrize("why", ["failure", "operator", "termination"])
def test_a_restoration_ends_what_was_told_before_the_exclusion_became_another(why: str) -> None:
    words = told(event=excluded(why, EventKind.RESTORED))
    assert words.keys() == {"nvsentinel"}
    assert (words["nvsentinel"]["isHealthy"], words["nvsentinel"]["isFatal"]) == (True, False)


def test_a_node_that_is_out_because_it_is_unknown_asks_for_none() -> None:
    words = told()
    assert (words["advice"], words["hyperpod"], words["azure"]) == ("none", "", "")
    assert words["nvsentinel"]["isFatal"] is False


@pytest.mark.parametrize("kind", [EventKind.EXCLUDED, EventKind.RESTORED])
def test_the_health_event_has_only_what_nvsentinel_s_message_has(kind: EventKind) -> None:
    sent = told(finding("xid", Advice.REBOOT, detail="79"), event=excluded(kind=kind))["nvsentinel"]
    assert all(isinstance(value, FIELDS[name]) for name, value in sent.items())
    assert sent["recommendedAction"] in ACTIONS
    assert (sent["checkName"], sent["nodeName"], sent["isHealthy"]) == (CHECK, "n1", kind is EventKind.RESTORED)
    assert sent["generatedTimestamp"] == "2026-03-01T12:00:00.250Z"


def test_all_words_are_words_of_those_who_read_them() -> None:
    assert {words.nvsentinel for words in TERMS.values()} <= ACTIONS
    assert {words.hyperpod for words in TERMS.values()} == {"", "Action:Reboot", "Action:Replace"}
    assert {*AZURE.values(), AZURE_OTHERWISE} <= CATEGORIES


def test_every_finding_with_a_category_exists() -> None:
    assert {code.partition(".")[0] for code in AZURE} <= CONDITIONS.keys()


def test_the_page_has_these_tables() -> None:
    text = PAGE.read_text()
    rows = dict(re.findall(r"^\| ([a-z0-9_., ]+) \| ([A-Z]\w+) \|$", text, re.MULTILINE))
    assert [(code, word) for codes, word in rows.items() for code in codes.split(", ") if codes != "any other"] == list(
        AZURE.items()
    )
    assert rows["any other"] == AZURE_OTHERWISE
    for advice, words in TERMS.items():
        (row,) = re.findall(rf"^\| [a-z_, ]*\b{advice}\b[^|]*\|[^\n]*$", text, re.MULTILINE)
        assert words.hyperpod in row
        assert f"`{words.nvsentinel}`" in row


def test_the_words_are_in_the_message_beside_its_data() -> None:
    words = told(finding("gpu_missing", Advice.INSPECT_HARDWARE))
    notification = message(excluded(), ORIGIN, repair=words)
    assert notification is not None
    document = json.loads(notification[1].body)
    assert (document["event"], document["repair"]["hyperpod"], "repair" in document["data"]) == (
        "excluded",
        "Action:Replace",
        False,
    )
