"""An order that was answered as done survives a kill -9 right after it; one that is not on disk yet is answered as such.

Hundreds of kills of every order: `benchmarks/kill_orders.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.daemons import FakeHost
from support.mounts import ext4, frozen
from support.orders import ORDERS, Order, given, send
from support.quick import first_quick


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


@pytest.mark.slow
@pytest.mark.parametrize("order", first_quick(1, (ORDERS[0], ORDERS[-1])), ids=str)
def test_an_order_that_was_answered_is_known_after_a_kill(host: FakeHost, order: Order) -> None:
    with host.daemon() as daemon:
        order.prepare(host, daemon)
        assert given(host, order.request)["ok"]
        daemon.process.kill()
    with host.daemon() as daemon:
        daemon.wait(lambda: order.kept(daemon), f"the trace of {order}")


@pytest.mark.slow
@pytest.mark.disposable
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_an_order_that_the_disk_does_not_take_is_accepted_not_yet_on_disk_and_can_be_sent_again(
    host: FakeHost, order: Order
) -> None:
    with ext4(host.folder / "disk") as disk:
        host.state_dir = disk / "state"
        host.configure()
        with host.daemon() as daemon:
            order.prepare(host, daemon)
            with frozen(disk):
                for _ in range(2):
                    answer = send(host, order.request)
                    assert (answer["ok"], answer["code"]) == (False, 75)
                    assert answer["error"].startswith("accepted, not yet on disk: ")
                daemon.wait(lambda: order.name == "ack" or order.kept(daemon), "the order to be acted on all the same")
            again = given(host, order.request)
            assert again["ok"], again
            daemon.process.kill()
        with host.daemon() as daemon:
            daemon.wait(lambda: order.kept(daemon), f"the trace of {order}")


@pytest.mark.slow
def test_another_order_in_between_is_never_taken_for_one_sent_again(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        for _ in range(2):
            assert given(host, {"verb": "exclude", "reason": "a fan"})["ok"]
            assert "operator" in daemon.heartbeat()["excluded_by"][0]
            assert given(host, {"verb": "restore"})["ok"]
            end = time.monotonic() + 60
            while daemon.heartbeat()["excluded_by"]:
                assert time.monotonic() < end
                time.sleep(0.02)
