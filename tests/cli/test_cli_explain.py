"""`explain`: every code that status can show has a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.actuators.base import BudgetUnknown
from gpuwarden.cli.explain_main import explanation
from gpuwarden.cli.parser import CommandError
from gpuwarden.features.active_test.reasons import REASONS
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.dcgm.catalogue import DCGM_CODES
from gpuwarden.health.runbooks import RUNBOOKS, UNKNOWN_RUNBOOK, place
from gpuwarden.health.to_do import of_condition
from gpuwarden.health.unknown_reasons import UNKNOWN_REASONS
from gpuwarden.health.xid.catalogue import XIDS
from gpuwarden.health.xid.sxid_catalogue import SXIDS
from support.commands import gpuwarden


def explained(name: str) -> str:
    return "\n".join(explanation(name))


@pytest.mark.parametrize("written", ["xid 79", "79", "Xid79", "xid.79", "xid.79@gpu/0000:4e:00.0", " XID 79 "])
def test_an_xid_may_be_written_in_each_way_that_it_is_met(written: str) -> None:
    text = explained(written)
    assert text.startswith("Xid 79: GPU has fallen off the bus\n  class:           failure")
    assert "to do:           Drain the node and power-cycle the machine." in text
    assert f"runbook:         {RUNBOOKS}/gpu.md#xid" in text
    assert "advice:          reboot" in text
    assert "from:            NVIDIA Xid catalogue" in text


def test_of_xid_79_it_is_told_that_the_gpu_is_lost_and_what_makes_it_a_warning() -> None:
    text = " ".join(explained("xid 79").split())
    assert "the driver gives the GPU up with this line: NVML answers that it is lost until a reboot" in text
    assert "a readable configuration space and an answer of NVML, both after it, contradict is a warning" in text


def test_an_xid_that_is_not_described_is_a_warning_and_shown_as_unknown() -> None:
    assert "not described" in explained("xid 99999")
    assert "warning" in explained("xid 99999")


def test_an_sxid_is_shown_as_fatal_or_not_fatal() -> None:
    assert explained("sxid 20034").startswith("SXid 20034: Link: fault, the link went down\n  class:           fatal")
    assert "not fatal" in explained("sxid.20001@switch/0000:05:00.0")


def test_a_condition_is_explained_with_what_raises_ends_and_silences_it() -> None:
    text = explained("pcie_link_degraded@gpu/0000:4e:00.0")
    assert "raised:          after it was observed for 4m" in text
    assert "ends when:       it is no longer seen, for 1m" in text
    assert "quiet during:    driver_unresponsive, driver_not_loaded, gpu_missing" in text


@pytest.mark.parametrize("row", CONDITIONS.values(), ids=CONDITIONS)
def test_every_condition_is_explained_with_what_to_do_and_the_address_of_its_runbook(row: Condition) -> None:
    text = explained(row.code)
    assert text.startswith(f"{row.code}: {row.title}\n")
    words = " ".join(text.split())
    assert f" to do: {' '.join(of_condition(row.code, row.advice).split())} " in words
    assert f" advice: {row.advice} " in words  # a key of kubernetes.conditions
    assert f" runbook: {RUNBOOKS}/{place(row.code)}" in words


@pytest.mark.parametrize("code", sorted(set(UNKNOWN_REASONS) - set(CONDITIONS)))
def test_every_reason_for_an_unknown_health_is_explained_likewise(code: str) -> None:
    words = " ".join(explained(code).split())
    assert words.startswith(f"{code} meaning: {UNKNOWN_REASONS[code].meaning} ")
    assert f" to do: {UNKNOWN_REASONS[code].to_do} runbook: {RUNBOOKS}/{UNKNOWN_RUNBOOK}" in words


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_of_the_return_gate_is_explained_with_what_to_do(code: str) -> None:
    text = explained(code)
    assert text.startswith(code)
    assert REASONS[code]["to do"] in " ".join(text.split())


def test_the_word_of_status_for_a_missing_count_is_explained_and_found_by_a_part_of_it() -> None:
    words = " ".join(explained(BudgetUnknown.reason).split())
    assert "so no node is taken out for a failure: this one stays in service" in words
    assert "to do: gpuwarden exclude --reason T" in words
    assert f"runbook: {RUNBOOKS}/GpuwardenBreakerOpen.md" in words
    assert f"\n{BudgetUnknown.reason} " in explained("")
    with pytest.raises(CommandError, match=f"did you mean {BudgetUnknown.reason}"):
        explained("budget")


def test_every_xid_and_sxid_can_be_explained() -> None:
    for number in XIDS:
        assert "to do:" in explained(f"xid {number}")
    for number in SXIDS:
        assert "class:" in explained(f"sxid {number}")


# --- lines of the kernel log

LINK_EVENT = "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x002001c6 0x00000000 0x00000000)"


@pytest.mark.parametrize("front", ["", "[ 1234.567890] ", "Jan 31 08:00:00 gpu-node01 kernel: ", "4,1,1,-;"])
def test_a_pasted_line_is_explained_from_its_content(front: str) -> None:
    text = explained(front + LINK_EVENT)
    assert text.startswith("Xid 149: NVLink 5, unit NETIR\n  GPU:             0000:00:00.0\n")
    assert "sub-code 2, error status 0x0, read as of either driver generation" in text
    assert "class:           failure" in text
    assert "to do:           Drain the node, and reset all its GPUs or reboot when it is empty." in text
    assert "if it recurs:    Drain the node and have the board inspected" in text
    assert "decode sheet for Xids 144 to 150" in text


@pytest.mark.slow
def test_a_pasted_line_is_read_as_the_driver_wrote_it(tmp_path: Path) -> None:
    text = {
        driver: gpuwarden("explain", "--driver", driver, LINK_EVENT, temporary=tmp_path).stdout
        for driver in ("570.86.15", "575.51.02")
    }
    assert "read as of drivers before R575" in text["570.86.15"]
    assert "class:           failure" in text["570.86.15"]
    assert "no rule of the vendor's sheet fits" in text["575.51.02"]
    assert "class:           warning" in text["575.51.02"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "the driver requests: reboot"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", "no recovery is needed any more"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=x, Ch 00000001 caused by previous Xid 149", "it followed Xid 149"),
        ("NVRM: Xid (PCI:0000:dc:00): 94, Contained: GSP (0x0). RST: Yes, D-RST: No", "the driver needs a reset of the GPU"),
        ("NVRM: Xid (PCI:0000:cb:00): 13, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): x", "place:           GPC 7 TPC 7"),
        ("NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.", "Xid 79: GPU has fallen off the bus"),
        ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20001, Fatal, Link 44 x", "class:           fatal"),
        ("NVRM: Xid (PCI:0000:01:00): 149, in a form of its own", "does not match the format in the vendor's sheet"),
    ],
)  # fmt: skip
def test_a_line_gives_more_details_than_its_number(line: str, expected: str) -> None:
    assert expected in explained(line)


def test_a_line_without_an_xid_is_bad_usage() -> None:
    with pytest.raises(CommandError, match="has no readable Xid") as caught:
        explained("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01")
    assert caught.value.code == 64


# --- DCGM and codes that are not in the table


@pytest.mark.parametrize(
    "code", ["dcgm 120", "dcgm FALLEN_OFF_BUS", "dcgm DCGM_FR_FALLEN_OFF_BUS", "dcgm fallen_off_bus"]
)
def test_a_code_of_dcgm_is_explained_with_the_condition_that_it_belongs_to(code: str) -> None:
    text = explained(code)
    assert text.startswith("DCGM code 120 (FALLEN_OFF_BUS): The GPU has fallen off the bus")
    assert "vendor's class:  isolate" in text
    assert "\nxid: The driver reported an Xid\n" in text


def test_every_code_of_dcgm_can_be_explained_by_number_and_name() -> None:
    for code, row in DCGM_CODES.items():
        text = explained(f"dcgm {code}")
        assert "to do:" in text
        assert explained(f"dcgm {row.name}") == text


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ("plugin_nhc", "plugin_nhc: The site check nhc found a fault"),
        ("dcgm_faulty_memory@gpu/0000:4e:00.0", "dcgm_faulty_memory: Memory of the GPU is faulty beyond repair"),
        ("dcgm_corrupt_inforom", "DCGM code 9 (CORRUPT_INFOROM): The InfoROM of the GPU is corrupt"),
        ("dcgm_code_4711", "dcgm_code_4711: not described"),
    ],
)
def test_codes_that_are_known_only_when_they_are_seen_can_be_explained(code: str, title: str) -> None:
    text = explained(code)
    assert text.startswith(title)
    assert "to do:" in text
    assert "from:" in text


# --- what the site makes of it

SITE = """
[xids.79]
severity = "warning"
advice = "contact_support"
[xids.43]
severity = "failure"
[sxids.20034]
severity = "record"
[checks.pcie_link_degraded]
shadow = true
rise = "10m"
"""


@pytest.mark.slow
def test_the_class_of_the_table_and_of_the_site_are_both_shown(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)

    def text(*words: str) -> str:
        done = gpuwarden("explain", *words, "--config", tmp_path / "site.toml", temporary=tmp_path)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    xid = text("xid", "79")
    assert "class: failure: the node should not take new work class here: warning: the node may still take" in xid
    assert (
        "to do here: Open a case with the vendor: save `nvidia-bug-report.sh` (the site's configuration: xids.79)"
        in xid
    )
    assert "class here: failure: the node should not take new work; to do here: Drain the node and reset" in text("43")
    assert "class here: record" in text("sxid", "20034")
    assert "here: in shadow: reported, without effect on health, rise 10m (the site's" in text("pcie_link_degraded")
    assert "class here" not in text("xid", "48")


@pytest.mark.slow
def test_all_faults_of_a_configuration_named_on_the_command_line_are_shown(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[xids.79]\nseverity = "dire"\n[xids.eighty]\nadvice = "none"\n')
    done = gpuwarden("explain", "xid", "79", "--config", tmp_path / "site.toml", temporary=tmp_path)
    assert done.returncode == 64
    assert "xids.79.severity" in done.stderr
    assert "xids.eighty" in done.stderr


def test_the_class_of_a_repeat_and_the_advice_for_a_recurrence_are_shown() -> None:
    assert "repeated:        failure" in explained("xid 74")
    assert "if it recurs:    Drain the node and have the board inspected" in explained("xid 79")
    assert "if it recurs" not in explained("xid 94")


def test_alone_it_lists_what_there_is(tmp_path: Path) -> None:
    done = gpuwarden("explain", temporary=tmp_path)
    assert done.returncode == 0
    assert all(f"\n{code} " in f"\n{done.stdout}" for code in CONDITIONS)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gpu_mising", "did you mean gpu_missing"),
        ("ecc", "did you mean ecc_uncorrectable or ecc_correctable_rate"),
        ("qqq", "'gpuwarden explain' lists all"),
        ("79.5x", "lists all"),
        ("9" * 5000, "lists all"),
    ],
)
def test_what_nobody_knows_is_bad_usage_with_a_hint(word: str, hint: str) -> None:
    with pytest.raises(CommandError) as caught:
        explained(word)
    assert hint in str(caught.value)
    assert caught.value.code == 64
