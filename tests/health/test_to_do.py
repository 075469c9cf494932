"""What to do about a finding: the text of its condition, of its Xid, or of what was tried in vain."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpuwarden.health.model import Advice, Key, Subject, gpu
from gpuwarden.health.to_do import AGAIN, COMMON, RECOVERY, TO_DO, VARIANTS, first_sentence, to_do
from gpuwarden.health.xid.to_do import XID_TO_DO

SLOT = "0000:4e:00.0"


def text(key: str, advice: Advice, **evidence: str | int) -> str:
    return to_do(Key.parse(f"{key}@gpu/{SLOT}"), advice, evidence)


@pytest.mark.parametrize(
    ("key", "advice", "evidence", "begin", "never"),
    [
        ("gpu_missing", Advice.INSPECT_HARDWARE, {}, "Drain the node and power-cycle the machine.", "cooling"),
        ("gpu_recovery_action", Advice.RESTART_APP, {"value": 3}, "End the jobs that use several GPUs here", "--gpu-reset"),
        ("gpu_recovery_action", Advice.RESET_GPU, {"value": 4}, "Drain the node, let its jobs end, and reset the GPU", "IMEX"),
        ("memory_degrading", Advice.CONTACT_SUPPORT, {}, "Have the board replaced when its jobs have ended.", "seating"),
        ("row_remaps_many", Advice.CONTACT_SUPPORT, {}, "Plan the replacement of the board.", "seating"),
        ("fabric_unhealthy", Advice.RESTART_SERVICE, {}, "Drain the node and read `journalctl -u nvidia-fabricmanager", "mount"),
        ("xid.74", Advice.OBSERVE, {}, f"Check the link: `nvidia-smi nvlink -s -i {SLOT}`", "SLOT"),
        ("xid.74", Advice.RESET_GPU, {}, "Drain the node, and reset all its GPUs or reboot", "Check"),
        ("xid.79", Advice.REBOOT, {}, "Drain the node and power-cycle the machine.", "Nothing"),
        ("xid.160", Advice.RESET_GPU, {}, f"Reset the GPU when the node is empty: `nvidia-smi --gpu-reset -i {SLOT}`", "Nothing"),
        ("xid.171", Advice.OBSERVE, {}, f"Read the ECC counters: `nvidia-smi -q -d ECC,ROW_REMAPPER -i {SLOT}`.", "Nothing"),
        ("xid.172", Advice.OBSERVE, {}, f"Read the ECC counters: `nvidia-smi -q -d ECC,ROW_REMAPPER -i {SLOT}`.", "Nothing"),
        ("xid.95", Advice.REBOOT, {"came_back_after": "a GPU reset"}, "Drain the node and reboot it.", "--gpu-reset"),
        ("ecc_uncorrectable", Advice.RESTART_APP, {}, "Restart the job that died", "Drain"),
        ("ledger_unavailable", Advice.FIX_CONFIGURATION, {}, "Check free space (`df -h`) and permissions of `state.dir`", "df -h /var"),
        ("plugin_nhc", Advice.OBSERVE, {}, "Follow the text of the check.", "Nothing"),
    ],
)  # fmt: skip
def test_the_text_is_that_of_the_finding_and_its_commands_name_the_gpu(
    key: str, advice: Advice, evidence: dict[str, str | int], begin: str, never: str
) -> None:
    shown = text(key, advice, **evidence)
    assert shown.startswith(begin)
    assert never not in shown
    assert "SLOT" not in shown


def test_a_site_s_own_advice_for_a_number_is_what_is_shown() -> None:
    assert text("xid.79", Advice.CONTACT_SUPPORT).startswith("Open a case with the vendor")


@pytest.mark.parametrize(("mount", "shown"), [("/scratch", "/scratch"), ("/a b;reboot", "NAME")])
def test_a_name_is_put_into_a_command_unless_a_shell_could_misread_it(mount: str, shown: str) -> None:
    made = to_do(Key("mount_missing", Subject("mount", "", mount)), Advice.RESTART_SERVICE, {})
    assert first_sentence(made) == f"Mount it: `mount {shown}`"


def test_the_same_gpu_has_the_same_text_in_every_pass() -> None:
    assert to_do(Key("xid", gpu(SLOT), "95"), Advice.RESET_GPU, {"text": "a"}) == text("xid.95", Advice.RESET_GPU)


@pytest.mark.parametrize("texts", [TO_DO, VARIANTS, COMMON, RECOVERY, AGAIN, XID_TO_DO])
def test_each_reset_of_a_gpu_names_the_services_that_nvidia_smi_would_refuse_it_for(
    texts: Mapping[object, str],
) -> None:
    resets = [shown for shown in texts.values() if "--gpu-reset" in shown]
    assert [
        shown for shown in resets if "First stop gpuwarden, nvidia-dcgm and nvidia-persistenced." not in shown
    ] == []
