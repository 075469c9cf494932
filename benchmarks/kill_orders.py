"""Kills the daemon with SIGKILL right after it answered an operator's order, and counts the orders that a later start does not know.

    python benchmarks/kill_orders.py [--rounds 200]

Not part of `make bench`: it measures no time. Exit status 1 if one was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.daemons import FakeHost
from support.orders import ORDERS, Order, send


def survives(order: Order) -> bool:
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder:
        host = FakeHost(Path(folder), gpus=2)
        with host.daemon() as daemon:
            order.prepare(host, daemon)
            answer = send(host, order.request)
            daemon.process.kill()
        if not answer["ok"]:
            raise SystemExit(f"{order} was not accepted: {answer['error']}")
        with host.daemon() as daemon:
            daemon.wait_status("healthy") if order.name != "accept" else daemon.find_port()
            return order.kept(daemon)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    lost: Counter[str] = Counter()
    for number in range(rounds):
        order = ORDERS[number % len(ORDERS)]
        lost[order.name] += not survives(order)
    for name, count in lost.items():
        print(f"{name:<30} lost {count}")
    print(f"{rounds} orders, each answered and the daemon killed at once: {lost.total()} lost")
    return min(1, lost.total())


if __name__ == "__main__":
    sys.exit(main())
