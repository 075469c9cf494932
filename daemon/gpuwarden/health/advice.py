"""The text for a person of each `model.Advice`. It imports nothing: the command line loads it for every verb."""

ADVICE = {
    "none": "nothing",
    "observe": "keep an eye on it",
    "restart_app": "restart the application",
    "reset_gpu": "drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot",
    "restart_service": "restart what does not run: the service, the mount, the driver",
    "reboot": "drain the node and reboot it",
    "fix_configuration": "correct the configuration of this host",
    "update_software": "update driver, firmware or library",
    "inspect_hardware": "have the hardware inspected: seating, cables, power, cooling",
    "contact_support": "open a case with the vendor",
}
