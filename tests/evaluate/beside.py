"""What a node has beside its GPUs, as the host's collectors see it: ports, mounts, memory, processes, services, a site check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import (
    AdapterFacts,
    InfinibandFacts,
    MemoryController,
    MemoryFacts,
    MountFacts,
    PcieLink,
    PluginFacts,
    PluginResult,
    PluginState,
    PortFacts,
    ProcessesFacts,
    ServiceFacts,
    ServicesFacts,
    StorageFacts,
    StuckProcess,
)

TIB, GIB = 1 << 40, 1 << 30
SHARED, LOCAL = "/scratch", "/local"
FABRIC_MANAGER, PERSISTENCED, DCGM, IMEX = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "nvidia-dcgm.service",
    "nvidia-imex.service",
)
CHECK = "nhc"
INTERVALS = {"infiniband": 10.0, "storage": 30.0, "memory": 30.0, "processes": 30.0, "services": 30.0, "plugin": 300.0}


def _mount(path: str, kind: str, size: int, **more: Any) -> MountFacts:
    return MountFacts(
        path=path, type=kind, source=f"/dev/{path[1:] or 'root'}", bytes_total=size, bytes_free=size // 2,
        bytes_available=size // 2, inodes_total=10_000_000, inodes_free=9_000_000, **more,
    )  # fmt: skip


def service(unit: str) -> ServiceFacts:
    return ServiceFacts(
        unit=unit, load="loaded", active="active", sub="running", result="success", enabled=True, restarts=0
    )


def _adapter(device: str, slot: str, *, lanes: int) -> AdapterFacts:
    link = PcieLink(at=slot, width=lanes, width_max=16, gtps=32.0, gtps_max=32.0)
    return AdapterFacts(slot=slot, device=device, links=(link,))


class Beside:
    """Ports by number, the rest by name; all may be changed through `port`, `mount`, `service` and by assignment."""

    def __init__(self, *, ports: int = 8) -> None:
        self.ports = [
            PortFacts(
                device=f"mlx5_{n}", port=1, link_layer="InfiniBand", state="active", physical_state="linkup",
                rate_gbps=400.0, link_downed=0, link_error_recovery=0, symbol_error=0, slot=f"0000:{0x40 + n:02x}:00.0",
            )
            for n in range(ports)
        ]  # fmt: skip
        self.adapters = [_adapter(port.device, port.slot, lanes=16) for port in self.ports]
        self.mounts = {
            "/": _mount("/", "ext4", TIB),
            LOCAL: _mount(LOCAL, "xfs", 8 * TIB),
            SHARED: _mount(SHARED, "lustre", 900 * TIB, expected=True),
        }
        controllers = tuple(MemoryController(name=f"mc{n}", corrected=0, uncorrected=0) for n in range(2))
        self.memory = MemoryFacts(total_bytes=2 * TIB, available_bytes=TIB, oom_kills=0, controllers=controllers)
        self.stuck: dict[int, tuple[StuckProcess, float]] = {}
        self.hung: dict[str, float] = {}
        self.services = {unit: service(unit) for unit in (FABRIC_MANAGER, PERSISTENCED, DCGM)}
        self.check = PluginResult(name=CHECK, state=PluginState.OK, at=Stamp(0.0, 0.0), text="OK", exit_code=0)

    # --- what befalls it

    def port(self, n: int, **values: Any) -> None:
        self.ports[n] = replace(self.ports[n], **values)

    def adapter_narrows(self, n: int, *, lanes: int) -> None:
        self.adapters[n] = _adapter(self.ports[n].device, self.ports[n].slot, lanes=lanes)

    def port_goes_down(self, n: int) -> None:
        downed = min(255, (self.ports[n].link_downed or 0) + 1)
        self.port(n, state="down", physical_state="polling", link_downed=downed)

    def port_comes_up(self, n: int) -> None:
        self.port(n, state="active", physical_state="linkup")

    def mount(self, path: str, **values: Any) -> None:
        self.mounts[path] = replace(self.mounts[path], **values)

    def service(self, unit: str, **values: Any) -> None:
        self.services[unit] = replace(self.services[unit], **values)

    def hang_process(self, now: Stamp, *, comm: str, gpu: bool, pid: int = 4242) -> None:
        self.stuck[pid] = (
            StuckProcess(pid=pid, comm=comm, seen_for=0.0, gpu=gpu, wait_channel="os_acquire_rwlock"),
            now.boottime,
        )

    def boots(self) -> None:
        """Reset what does not outlive a reboot. What is broken stays broken."""
        self.stuck.clear()
        self.hung.clear()
        self.ports = [replace(port, link_downed=0) for port in self.ports]
        controllers = tuple(replace(each, corrected=0, uncorrected=0) for each in self.memory.controllers)
        self.memory = replace(self.memory, oom_kills=0, controllers=controllers)

    # --- what is seen

    def facts(self, collector: str, now: Stamp) -> Any:
        match collector:
            case "infiniband":
                return InfinibandFacts(ports=tuple(self.ports), adapters=tuple(self.adapters))
            case "storage":
                return StorageFacts(mounts=tuple(self._seen(path, now) for path in self.mounts))
            case "memory":
                return self.memory
            case "processes":
                seen = (replace(process, seen_for=now.boottime - since) for process, since in self.stuck.values())
                manager = self.services[FABRIC_MANAGER].active == "active"
                return ProcessesFacts(stuck=tuple(seen), fabric_manager=manager)
            case "services":
                return ServicesFacts(services=tuple(self.services.values()))
            case "plugin":
                return PluginFacts(results=(replace(self.check, at=now),))
        raise KeyError(collector)

    def _seen(self, path: str, now: Stamp) -> MountFacts:
        mount, since = self.mounts[path], self.hung.get(path)
        if since is None:
            return mount
        blind: dict[str, Any] = dict.fromkeys(
            ("bytes_total", "bytes_free", "bytes_available", "inodes_total", "inodes_free")
        )
        return replace(mount, hung_for=max(5.0, now.boottime - since), **blind)
