"""What the words of advice say to a person."""

from __future__ import annotations

from gpuwarden.health.model import Advice

ADVICE: dict[Advice, str] = {
    Advice.NONE: "nothing",
    Advice.OBSERVE: "keep an eye on it",
    Advice.RESTART_APP: "restart the application",
    Advice.RESET_GPU: "drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot",
    Advice.RESTART_SERVICE: "restart what does not run: the service, the mount, the driver",
    Advice.REBOOT: "drain the node and reboot it",
    Advice.FIX_CONFIGURATION: "correct the configuration of this host",
    Advice.UPDATE_SOFTWARE: "update driver, firmware or library",
    Advice.INSPECT_HARDWARE: "have the hardware inspected: seating, cables, power, cooling",
    Advice.CONTACT_SUPPORT: "open a case with the vendor",
}
