r"""Patterns of kernel log lines other than Xids, SXids, PCIe errors and resets. Pure.

| reports | line | printed by |
|---|---|---|
| `gpu_init_failed` | `NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x25:0x40:1470)` | osinit.c, at each attempt to open the GPU |
| | `NVRM: GPU 0000:81:00.0: rm_init_adapter failed, device minor number 0` | nv.c, right behind it |
| | `nvidia: probe of 0000:5d:00.0 failed with error -1`; since Linux 6.9 `nvidia 0000:67:00.0: probe with driver nvidia failed with …` | drivers/base/dd.c, between lines of the driver that name no GPU |
| `gpu_reset_advised` | `NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU likely needs to be reset.` | rpc.c, after several Xids 119 |
| `gsp_heartbeat` | `NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs …`, then `NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out`, `… LibOS heartbeat timed out` or `… GSP RM / LibOS heartbeat timed out` | kernel_gsp.c from 595 on; once after each resume from suspend, too |
| `soft_lockup` | `watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4711]` | kernel/watchdog.c, each 20 to 30 s; the process name, which is its user's to choose, is left out |
| `nvme_failed` | `nvme nvme0: Removing after probe failure status: -19`; since Linux 6.4 `Disabling device after reset failure: -19` | drivers/nvme/host/pci.c, nothing tries again |
| `nvme_found` | `nvme nvme0: pci function 0000:04:00.0` | the same, at probe |
| `adapter_timeout` | `mlx5_core 0000:03:00.0: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource` | mlx5 cmd.c, 60 s after the command |
| `adapter_silent` | `mlx5_core …: poll_health:852:(pid 0): device's health compromised - reached miss count` | mlx5 health.c, once |
| `adapter_hardware` | `mlx5_core …: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error` | the same |
| | `mlx5_core …: poll_health:803:(pid 0): Fatal error 1 detected` | the same; 1 and 2 are about PCIe, 4 and 5 are requests for a reset; 3 (disabled) is also how a virtual function ends |
| `adapter_recovered` | `mlx5_core …: health recovery succeeded`, `mlx5_core …: firmware version: 28.41.1000` | health.c; main.c, when the driver begins with it. A version of 65535 is what is read where nothing answers |
| `memory_failed` | `mce: Uncorrected hardware memory error in user-access at 3f5a6c000` | x86, mce/core.c; names no process |
| | `Memory failure: 0x1840200: Sending SIGBUS to python3:4711 due to hardware memory corruption`; before Linux 5.3 `Killing python3:4711 …` | mm/memory-failure.c, for each process; its name is left out |
| | `MCE: Killing python3:4711 due to hardware memory corruption fault at 7f1c40001000` | x86, mm/fault.c: a later access to such a page |

A later record names the module of a soft lockup: see `lockups.py`.
"""

from __future__ import annotations

import re

from gpuwarden_collectors.event_facts import LineKind

_ADDRESS = r"(?P<slot>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_MLX5 = rf"mlx5_core {_ADDRESS}: "
_WHERE = r"(?:\w{1,64}:\d{1,6}:\(pid \d{1,10}\): )?"
_NVRM_GPU = rf"(?:NVRM: ){{1,3}}GPU {_ADDRESS}: "
_HEX = r"[0-9a-f]{1,16}"
_NVME = r"nvme (?P<part>nvme\d{1,5}): "

_FORMS: tuple[tuple[str, LineKind], ...] = (
    (rf"{_NVRM_GPU}(?:RmInitAdapter failed!|rm_init_adapter failed\b)", LineKind.GPU_INIT_FAILED),
    (rf"nvidia: probe of {_ADDRESS} failed with error -?\d", LineKind.GPU_INIT_FAILED),
    (rf"nvidia {_ADDRESS}: probe with driver nvidia failed with error -?\d", LineKind.GPU_INIT_FAILED),
    (
        r"(?:NVRM: ){1,3}Rate limiting GSP RPC error prints for GPU at PCI:(?P<slot>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}) ",
        LineKind.GPU_RESET_ADVISED,
    ),
    (
        r"(?:NVRM: ){1,3}(?:GPU\d{1,3} )?(?:_kgspIsHeartbeatTimedOut: H|_kgspRpcRecvPoll: (?:GSP RM|LibOS|GSP RM / LibOS) h)eartbeat timed out\b",
        LineKind.GSP_HEARTBEAT,
    ),
    (r"(?P<text>(?:watchdog: )?BUG: soft lockup - CPU#\d{1,5} stuck for \d{1,6}s!) \[", LineKind.SOFT_LOCKUP),
    (
        rf"{_NVME}(?:Removing after probe failure status|Disabling device after reset failure): -?\d",
        LineKind.NVME_FAILED,
    ),
    (rf"{_NVME}pci function [0-9a-f:]", LineKind.NVME_FOUND),
    (rf"{_MLX5}{_WHERE}.{{0,80}}timeout\. Will cause a leak of a command resource", LineKind.ADAPTER_TIMEOUT),
    (rf"{_MLX5}{_WHERE}device's health compromised\b", LineKind.ADAPTER_SILENT),
    (rf"{_MLX5}{_WHERE}synd 0x[0-9a-f]{{1,8}}: unrecoverable hardware error", LineKind.ADAPTER_HARDWARE),
    (rf"{_MLX5}{_WHERE}Fatal error [1245] detected", LineKind.ADAPTER_HARDWARE),
    (rf"{_MLX5}{_WHERE}(?:health recovery succeeded|firmware version: (?!65535\.)\d)", LineKind.ADAPTER_RECOVERED),
    (rf"mce: Uncorrected hardware memory error in user-access at {_HEX}", LineKind.MEMORY_FAILED),
    (
        rf"(?P<text>(?:Memory failure: 0x{_HEX}|MCE): (?:Killing|Sending SIGBUS to)) .{{0,15}}:(?P<pid>\d{{1,10}}) due to hardware memory corruption\b",
        LineKind.MEMORY_FAILED,
    ),
)

OTHER_LINES: tuple[tuple[re.Pattern[str], LineKind], ...] = tuple(
    (re.compile(form, re.ASCII | re.DOTALL), kind) for form, kind in _FORMS
)
