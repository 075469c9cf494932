"""Checks of the systemd unit: installation, profile, and whether it stops before the network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn

NAME = "gpuwarden.service"
RESPONSE_WITHIN = 5.0
_PROPERTIES = tuple(
    """
    LoadState ActiveState SubState Result NRestarts UnitFileState User DropInPaths After TimeoutStopUSec
    NeedDaemonReload KillMode SupplementaryGroups AmbientCapabilities ProtectSystem ReadWritePaths StateDirectory""".split()
)
_NETWORK = "network.target"
_TO_DO = {"not-found": "install the unit (docs/use/systemd.md)", "masked": f"systemctl unmask {NAME}"}
"""Advice by LoadState, for the states in which systemd cannot start the unit."""


def unit(config: Config, run: Path = Path("/run"), command: tuple[str, ...] = ("systemctl",)) -> Iterator[Row]:
    """Check the daemon's unit. `run`: contains `systemd/system` if and only if systemd is running (sd_booted(3))."""
    if not (run / "systemd/system").is_dir():
        yield ok("unit", "this host, or container, does not run systemd")
        return
    try:
        properties = _shown(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail("unit", f"systemctl: {error}", "check whether systemd responds: systemctl status")
        return
    yield from unit_rows(properties, config)


def identity(run: Path = Path("/run"), command: tuple[str, ...] = ("systemctl",)) -> Mapping[str, str]:
    """Return the unit's properties; empty if systemd does not run or does not respond, which `unit` reports."""
    if not (run / "systemd/system").is_dir():
        return {}
    try:
        return _shown(command)
    except (OSError, subprocess.TimeoutExpired):
        return {}


def _shown(command: tuple[str, ...]) -> dict[str, str]:
    """Return the unit's properties from systemctl. Raises OSError if it fails, TimeoutExpired without an answer."""
    done = subprocess.run(  # noqa: S603 - no shell, and all arguments are constants
        (*command, "show", f"--property={','.join(_PROPERTIES)}", "--", NAME),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RESPONSE_WITHIN,
        check=False,
    )
    if done.returncode:
        raise OSError(done.stderr.decode("utf-8", "replace").strip()[:200] or f"ended with {done.returncode}")
    text = done.stdout.decode("utf-8", "replace")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def unit_rows(properties: Mapping[str, str], config: Config) -> Iterator[Row]:
    """Yield the rows for these `properties` of the unit, as `systemctl show` prints them."""
    if properties.get("LoadState") != "loaded":
        state = f"{NAME} is {properties.get('LoadState') or 'unknown'}"
        to_do = _TO_DO.get(properties.get("LoadState", ""), f"see systemctl status {NAME}")
        yield warn("unit", state, f"{to_do}: until then nothing starts the daemon")
        return
    yield _state(properties)
    yield _profile(properties, config)
    yield _shutdown(properties)
    yield from _sandbox(properties, config)


def _state(properties: Mapping[str, str]) -> Row:
    active, enabled = properties.get("ActiveState", ""), properties.get("UnitFileState", "")
    state = f"{NAME} is {active} ({properties.get('SubState', '')}), {enabled or 'with no file'}"
    restarts = properties.get("NRestarts", "0")
    if active == "failed":
        return fail("unit", f"{state}: {properties.get('Result', '')}", f"see journalctl -u {NAME} -n 50")
    if properties.get("NeedDaemonReload") == "yes":
        return warn("unit", f"{state}; its files have changed since", "systemctl daemon-reload")
    if enabled not in ("enabled", "enabled-runtime", "static", "generated"):
        return warn("unit", state, f"systemctl enable --now {NAME}: otherwise it does not start after a reboot")
    if active == "inactive":
        to_do = f"systemctl start {NAME}; if that fails, see journalctl -u {NAME} -n 50: a mount that it needs may have failed"
        return warn("unit", state, to_do)
    if restarts.isdecimal() and int(restarts) >= 3:
        return warn("unit", f"{state}; restarted {restarts} times", f"see journalctl -u {NAME}")
    return ok("unit", state)


def _profile(properties: Mapping[str, str], config: Config) -> Row:
    """Return the row about the profile, a drop-in named after its link's target. See docs/use/systemd.md."""
    names = [Path(path).resolve().stem for path in properties.get("DropInPaths", "").split()]
    user, drains = properties.get("User") or "root", config.mode == "enforce" and config.slurm.enabled
    state = f"user {user}, drop-ins: {', '.join(names) or 'none'}"
    if not names:
        return warn("profile", state, "choose a profile for the permissions of the daemon: see docs/use/systemd.md")
    if drains and user != "root" and "slurm" not in user:
        to_do = (
            "use the profile enforce (docs/use/systemd.md): only root, SlurmUser and Slurm's administrators may drain"
        )
        return warn("profile", f"{state}; mode is enforce, with Slurm", to_do)
    return ok("profile", state)


def _shutdown(properties: Mapping[str, str]) -> Row:
    """Check the stop order: systemd stops a unit before those that it is ordered after."""
    network = _NETWORK in properties.get("After", "").split()
    state = f"stops within {properties.get('TimeoutStopUSec') or 'an unknown time'}{', before the network' if network else ''}"
    if not network:
        to_do = f"add After={_NETWORK} to the unit: at a shutdown the daemon must still reach the scheduler"
        return warn("stop order", f"{state}, possibly after the network", to_do)
    if properties.get("KillMode") == "control-group":
        to_do = "set KillMode=process: a worker that hangs in the driver would delay every restart"
        return warn("stop order", f"{state}, but waits for its workers", to_do)
    return ok("stop order", state)


def _sandbox(properties: Mapping[str, str], config: Config) -> Iterator[Row]:
    """Yield a row if the unit's sandbox makes the state directory read-only; other programs may write to it."""
    if properties.get("ProtectSystem") != "strict":
        return
    writable = [Path("/var/lib", each) for each in properties.get("StateDirectory", "").split()]
    writable += [Path(each.lstrip("-+")) for each in properties.get("ReadWritePaths", "").split()]
    path = config.state.dir
    if not any(path.resolve().is_relative_to(each.resolve()) for each in writable):
        to_do = f"systemctl edit {NAME}: [Service] ReadWritePaths=-{path} (docs/use/systemd.md#state-on-another-disk)"
        yield fail("unit", f"state.dir = {path} is read-only for the daemon, by ProtectSystem of the unit", to_do)
