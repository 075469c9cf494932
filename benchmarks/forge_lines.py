"""Writes forged lines into the kernel log of a host as the judge sees it, and counts what they raised or ended; and genuine lines
about processes with hostile names, and counts those that were disbelieved.

    python benchmarks/forge_lines.py [--rounds 2000] [--seed 1]

Not part of `make bench`: it measures no time. Exit status 1 if one forged line had an effect, or one genuine line had none.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from gpuwarden.health.model import EventKind
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.kernel_log.belief import disbelieved
from gpuwarden_collectors.kernel_log.lines import event_of, parse_record
from support.hosts import Host, slot

DATA = Path(__file__).parents[1] / "tests/data/kernel_log"
TAILS = [
    line.partition(";")[2].removeprefix("@")
    for line in (DATA / "packet_filter.txt").read_text().split("\n")
    if ";@" in line
]
RAISING = (
    "NVRM: Xid (PCI:{gpu}): {xid}, pid=1, name=x, something broke",
    "NVRM: Xid (PCI:{gpu}): {xid}, ",
    "NVRM: GPU {gpu}.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:{switch}): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia {gpu}.0: not ready 1023ms after bus reset; giving up",
)
ENDING = (
    "NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "nvidia {gpu}.0: reset done",
    "nvidia {gpu}.0: ready 1023ms after bus reset",
)
XIDS = (48, 62, 79, 95, 119, 140, 154)
SHORT = 15
NAME_PIECES = (
    "IN=",
    " OUT=",
    ", ",
    " ",
    "PHYSIN=",
    "MAC source",
    "SRC=",
    "lo",
    "=",
    "NVRM: ",
    "\\x0a",
    "ARP ",
    "MAC",
    ",",
)
NOTABLE = (
    EventKind.RAISED,
    EventKind.RISING,
    EventKind.CLEARED,
    EventKind.RESET,
    EventKind.XID,
    EventKind.SXID,
    EventKind.HEALTH,
)


class Log:
    """The kernel log of a host with eight GPUs, one of which has failed."""

    def __init__(self) -> None:
        self.host = Host(8)
        self._sequence = 0
        self.host.step()
        self.host.uptime += 1
        self.host.step(self.host.xid(5, 95))
        self.host.run(60)

    def takes(self, text: str, *, facility: int = 0) -> tuple[str, list[HostEvent]]:
        """Why it was disbelieved by the reader, and the events that it was made into."""
        self._sequence += 1
        record = parse_record(f"{facility << 3 | 4},{self._sequence},1,-;{text}".encode())
        event = None if record is None else event_of(record, self.host.now, self.host.boot_id)
        if record is None or event is None:
            return "no form of an event", []
        why = disbelieved(record, {0})
        return why, [] if why else [event]

    def effects(self, events: list[HostEvent]) -> int:
        """Return how many notable events follow from these within a minute."""
        before = len(self.host.ledger)
        self.host.uptime += 1
        self.host.step(*events)
        self.host.run(60 if events else 5)
        return sum(event.kind in NOTABLE for event in self.host.ledger[before:])


def text(dice: random.Random, *, gpu: str, switch: str) -> str:
    form = dice.choice(RAISING + ENDING)
    return form.format(gpu=gpu.removesuffix(".0"), switch=switch, xid=dice.choice(XIDS))


def forged(dice: random.Random) -> Iterator[tuple[str, str, int]]:
    """Kind, text and facility of one line after the other."""
    here = {"gpu": slot(dice.randrange(8)), "switch": "0000:05:00.0"}
    away = {"gpu": f"{dice.randrange(1, 9):04x}:{dice.randrange(256):02x}:00.0", "switch": "0001:05:00.0"}
    yield "another facility", text(dice, **here), dice.randrange(1, 24)
    yield "a packet filter's rule", text(dice, **here)[: dice.choice((29, 127))] + dice.choice(TAILS), 0
    yield "a packet filter's rule with a name", text(dice, **here)[:96] + name(dice) + dice.choice(TAILS), 0
    yield "an unknown slot", text(dice, **away), 0


def name(dice: random.Random) -> str:
    made = "".join(dice.choices(NAME_PIECES, k=dice.randrange(1, 6)))
    while len(made.replace("\\x0a", "\n")) > SHORT:
        made = made[: -4 if made.endswith("\\x0a") else -1]
    return made


def genuine(dice: random.Random) -> str:
    bus = slot(dice.randrange(8)).removesuffix(".0")
    rest = dice.choice(
        (
            "Ch 00000008",
            "Ch 00000008, intr 00000000.",
            "GPU has fallen off the bus.",
            "Uncontained: SM (0x1). RST: Yes, D-RST: No",
        )
    )
    return f"NVRM: Xid (PCI:{bus}): {dice.choice(XIDS)}, pid='{dice.randrange(99999)}', name={name(dice)}, {rest}"


def campaign(rounds: int, seed: int, tell: Callable[[str], None]) -> bool:
    dice, log = random.Random(seed), Log()
    written: Counter[str] = Counter()
    had: Counter[str] = Counter()
    for _ in range(rounds):
        for kind, line, facility in forged(dice):
            _, events = log.takes(line, facility=facility)
            written[kind] += 1
            effects = log.effects(events) if events else 0
            if effects:
                had[kind] += 1
                tell(f"{kind}: {line!r} had {effects} effects")
    for kind, count in written.items():
        tell(f"{kind:<36} {count:>7} written, {had[kind]} raised or ended anything (0)")
    refused = 0
    for _ in range(rounds):
        line = genuine(dice)
        why, events = log.takes(line)
        refused += not events
        if not events:
            tell(f"disbelieved ({why}): {line!r}")
    tell(f"{'genuine, with a hostile name':<36} {rounds:>7} written, {refused} disbelieved (0)")
    return not had and not refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    return int(not campaign(chosen.rounds, chosen.seed, print))


if __name__ == "__main__":
    sys.exit(main())
