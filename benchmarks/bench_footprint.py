"""What the daemon and its worker take of a machine with 8 GPUs while nothing happens: CPU, memory, threads, descriptors.

CPU is of one core, over a minute (in which what is read each minute is due once), and the spread that of its twelfths.
Two daemons run at a time, one of them scraped every 15 s; memory is read when only that one is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from common import cpu_ns, fake_host, scrape, spread, table, wait_for_all
from support.daemons import RunningDaemon

GPUS = 8
LIMITS = {5.0: 0.5, 1.0: 1.5}  # per cent of a core, by the interval of a pass in seconds
PSS_LIMIT = 65  # MiB, daemon and worker together
SETTLE = 3.0
WINDOW, WINDOWS = 5.0, 12
SCRAPE_EVERY = 3  # windows
FORMS = {
    "text": {"Accept-Encoding": "identity"},
    "text, gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics": {"Accept": "application/openmetrics-text", "Accept-Encoding": "identity"},
    "OpenMetrics, gzip": {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
}


def processes(daemon: RunningDaemon) -> dict[str, int]:
    return {"daemon": daemon.process.pid, "worker": daemon.worker()}


def shares(quiet: RunningDaemon, scraped: RunningDaemon) -> list[dict[str, list[float]]]:
    """For each of the two daemons, and each of its processes: per cent of a core in each window."""
    pids = [processes(quiet), processes(scraped)]
    result: list[dict[str, list[float]]] = [{name: [] for name in group} for group in pids]
    time.sleep(SETTLE)
    begun = time.monotonic()
    before = [{name: cpu_ns(pid) for name, pid in group.items()} for group in pids]
    for window in range(WINDOWS):
        if window % SCRAPE_EVERY == 1:
            scrape(scraped.port, FORMS["text, gzip"])
        time.sleep(max(0.0, begun + (window + 1) * WINDOW - time.monotonic()))
        now = [{name: cpu_ns(pid) for name, pid in group.items()} for group in pids]
        for used, old, new in zip(result, before, now, strict=True):
            for name, values in used.items():
                values.append((new[name] - old[name]) / WINDOW / 1e7)
        before = now
    return result


def cpu_row(interval: float, scraped: str, used: Mapping[str, Sequence[float]]) -> list[str]:
    both = [sum(pair) for pair in zip(*used.values(), strict=True)]
    mean = sum(both) / len(both)
    each = [spread(values, 3) for values in (*used.values(), both)]
    return [f"{interval:g} s", scraped, *each, f"{mean:.3f}", f"< {LIMITS[interval]}"]


def memory(pid: int) -> dict[str, float]:
    """MiB from smaps_rollup, and counts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return {
        "PSS MiB": kib["Pss"] / 1024,
        "USS MiB": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024,
        "RSS MiB": kib["Rss"] / 1024,
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def memory_rows(interval: float, daemon: RunningDaemon) -> list[list[object]]:
    """The last row: what PSS would be if no other Python ran here, for what the worker shares it shares with the daemon."""
    found = {name: memory(pid) for name, pid in processes(daemon).items()}
    ours, worker = found["daemon"], found["worker"]
    found["together"] = {column: ours[column] + worker[column] for column in ours}
    rows: list[list[object]] = [
        [f"{interval:g} s", name, *(round(value, 1) for value in one.values())] for name, one in found.items()
    ]
    return [*rows, [f"{interval:g} s", "alone", round(ours["RSS MiB"] + worker["USS MiB"], 1), "", "", "", ""]]


def page_rows(daemon: RunningDaemon) -> list[list[str]]:
    bodies = {form: scrape(daemon.port, headers) for form, headers in FORMS.items()}
    samples = [line for line in bodies["text"].splitlines() if not line.startswith(b"#")]
    own = sum(line.startswith(b"gpuwarden_") for line in samples)
    return [
        [form, str(len(samples)), str(own), str(len(samples) - own), str(len(body))] for form, body in bodies.items()
    ]


def main() -> None:
    cpu: list[list[str]] = []
    used: list[list[object]] = []
    for interval in LIMITS:
        with ExitStack() as stack:
            host = stack.enter_context(fake_host(gpus=GPUS, interval=interval, device=True))
            scraped = stack.enter_context(host.daemon())
            wait_for_all(scraped, GPUS)
            with fake_host(gpus=GPUS, interval=interval, device=True) as other, other.daemon() as quiet:
                wait_for_all(quiet, GPUS)
                seen = shares(quiet, scraped)
            cpu += [cpu_row(interval, how, one) for how, one in zip(("no", "each 15 s"), seen, strict=True)]
            used += memory_rows(interval, scraped)
            pages = page_rows(scraped)
            findings = len(scraped.status()["findings"])
    windows = f"{WINDOWS} windows of {WINDOW:g} s"
    table(
        f"CPU of one core, {GPUS} GPUs, {findings} findings, kernel log {host.kmsg}: median (least-most) of {windows}",
        ("pass each", "scraped", "daemon %", "worker %", "together %", "mean together", "required"),
        cpu,
    )
    table(
        f"Memory after a minute of passes and scrapes, {GPUS} GPUs; required: PSS together <= {PSS_LIMIT} MiB",
        ("pass each", "process", "PSS MiB", "USS MiB", "RSS MiB", "threads", "descriptors"),
        used,
    )
    table(f"/metrics, {GPUS} GPUs", ("form", "series", "own", "DCGM names", "bytes"), pages)


if __name__ == "__main__":
    main()
