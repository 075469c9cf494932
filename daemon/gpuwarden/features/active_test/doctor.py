"""Checks whether `gpuwarden test` can run here: what CUDA needs, and what uses the GPUs. Loads no library itself."""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check, in_loop
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden.features.active_test.idle.doctor import idle_tests
from gpuwarden.features.active_test.options import ActiveTestOptions, level_before_return
from gpuwarden.features.active_test.tester.host import HostReadings, HostUnread
from gpuwarden.features.active_test.tester.left_behind import left_behind
from gpuwarden.features.active_test.tester.obstacles import obstacle
from gpuwarden.features.active_test.tester.surroundings import environment
from gpuwarden_collectors.active_test.cuda.library import LIBRARY
from gpuwarden_collectors.driver_libraries import candidates
from gpuwarden_collectors.host_files import text_or_empty
from gpuwarden_collectors.options import SEPARATOR
from gpuwarden_collectors.plugin.run import run

PTX_COMPILER = "libnvidia-ptxjitcompiler.so.1"
_LOADED_WITHIN = 10.0
_LOADS = """
import ctypes, sys
for paths in sys.argv[1:]:
    for path in paths.split(":"):
        try:
            ctypes.CDLL(path)
            break
        except OSError:
            pass
    else:
        print(paths.partition(":")[0])
"""
_UVM = Path("/dev/nvidia-uvm")
MODPROBE = Path("/usr/bin/nvidia-modprobe")
"""Setuid program that creates that device: libcuda calls it, and so does gpuwarden-uvm.service."""
_ADDRESS_SPACE = 64 << 30
"""Bytes. A context on an H100 took 13 GiB of address space; the mapped memory of eight GPUs may take more."""
_SHOWN = 4


async def active_test(config: Config) -> list[Row]:
    """Return the rows about active tests. Without a driver one row states that there is nothing to test."""
    if not (config.paths.proc / "driver/nvidia/version").exists():
        return [*gate(config), ok("gpuwarden test", "no driver is loaded: there is nothing to test")]
    return [
        *gate(config),
        *await libraries(environment(None)),
        uvm(_UVM),
        address_space(),
        await workers(config.paths.proc),
        *await gpus(config),
    ]


def gate(config: Config) -> Iterator[Row]:
    """Yield the row about the return gate; none if no test comes before a return. Allowed repairs require one, too."""
    test = config.of(ActiveTestOptions)
    always = test.enabled and test.return_gate
    if not (always or config.repairs):
        return
    when = "" if always else "after a repair "
    if test.gate_socket.is_socket():
        level = level_before_return(config, repaired=not always)
        more = level_before_return(config, repaired=config.repairs)
        levels = f"{when}level {level}" if more is level else f"level {level}, after a repair {more}"
        yield ok("return gate", f"{levels}, through {test.gate_socket}")
    else:
        to_do = f"systemctl enable --now gpuwarden-test.socket: otherwise {when}this node returns without a test"
        yield warn("return gate", f"{test.gate_socket} does not exist", to_do)


async def libraries(variables: Mapping[str, str]) -> list[Row]:
    """Check whether a process with this environment, such as a worker, can load libcuda and the PTX compiler."""
    absent, error = await absent_libraries(variables)
    if error:
        return [warn("libcuda", f"cannot be loaded: {error}", "reinstall the driver's libraries")]
    return list(_libraries(absent))


async def absent_libraries(variables: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the libraries that a process with this environment cannot load, and an error if the check failed."""
    cuda = SEPARATOR.join(candidates(LIBRARY))  # libcuda looks up the PTX compiler through the loader alone
    done = await run((sys.executable, "-I", "-c", _LOADS, cuda, PTX_COMPILER), variables, _LOADED_WITHIN)
    if done.exit_code != 0:
        return [], done.error or f"exit code {done.exit_code}"
    return done.stdout.decode("utf-8", "replace").split(), ""


def _libraries(absent: list[str]) -> Iterator[Row]:
    for check, name, package in (
        ("libcuda", LIBRARY, "libcuda1"),
        ("PTX compiler", PTX_COMPILER, "libnvidia-ptxjitcompiler1"),
    ):
        if name in absent:
            to_do = f"install the driver's package that has it (Debian: {package}): gpuwarden test needs it"
            yield warn(check, f"{name} is not installed", to_do)
        else:
            yield ok(check, f"{name} can be loaded")


def uvm(node: Path, modprobe: Path = MODPROBE) -> Row:
    """Check the device of nvidia-uvm, without which cuInit fails with 999. Only the first use of CUDA creates it."""
    if not node.exists() and _is_root_for_all(modprobe):
        return ok("uvm", f"{node} does not exist yet: {modprobe} makes it for the first program that uses CUDA")
    if not node.exists():
        return warn(
            "uvm", f"{node} does not exist", "modprobe nvidia-uvm && nvidia-modprobe -u -c 0: gpuwarden test needs it"
        )
    if not os.access(node, os.R_OK | os.W_OK):
        return warn("uvm", f"this user may not open {node}", "run gpuwarden test as a user that may, such as root")
    return ok("uvm", f"{node} can be opened")


def _is_root_for_all(program: Path) -> bool:
    with suppress(OSError):
        status = program.stat()
        return status.st_uid == 0 and bool(status.st_mode & stat.S_ISUID and status.st_mode & stat.S_IXOTH)
    return False


def address_space() -> Row:
    """Return the row about RLIMIT_AS. With less than about 13 GiB of address space cuInit fails with error 2."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= _ADDRESS_SPACE:
        return ok("address space", "not limited" if limit == resource.RLIM_INFINITY else f"{limit >> 30} GiB")
    return warn(
        "address space",
        f"limited to {limit / (1 << 30):.1f} GiB",
        "remove LimitAS= or ulimit -v: CUDA reserves 13 GiB and more",
    )


async def workers(proc: Path) -> Row:
    """Return the row about workers of earlier tests that could not be killed."""
    pids = await left_behind(proc)
    if not pids:
        return ok("workers of tests", "none is left from an earlier test")
    named = ", ".join(map(str, pids[:_SHOWN]))
    return warn(
        "workers of tests", f"hang in the driver and cannot be killed: pid {named}", "drain the node, and reboot it"
    )


async def gpus(config: Config) -> list[Row]:
    """Return the row about which GPUs could be tested now."""
    readings = HostReadings(config.collectors.nvml)
    try:
        host = await readings.read()
    except HostUnread as error:
        return [warn("GPUs to test", str(error), "see the row nvml")]
    finally:
        await readings.close()
    proc = config.paths.proc
    met = {
        gpu.index: obstacle(gpu, host, lambda pid: text_or_empty(proc / str(pid) / "comm")) for gpu in host.nvml.gpus
    }
    held = {index: reason for index, reason in met.items() if reason is not None}
    if not held:
        return [ok("GPUs to test", f"all {len(met)} GPUs are idle")]
    shown = "; ".join(f"GPU {index}: {text}" for index, (_, text) in list(held.items())[:_SHOWN])
    more = f"; and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return [ok("GPUs to test", f"{len(met) - len(held)} of {len(met)} could be tested now: {shown}{more}")]


CHECKS = {
    "active test": Check(in_loop(active_test), 45.0),
    "tests of idle nodes": Check(in_loop(idle_tests), 90.0, "slurm"),
}
