"""An engine that is gone, hangs, is full, or of another version than its bindings; addresses that are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dcgm.errors import Misfit
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, PAUSED
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.dcgm.reader import DcgmReader
from support.dcgm import ADDRESS, ALL_SYSTEMS, BINDINGS, FakeDcgm, reader_of, reading


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDcgm:
    fake = FakeDcgm(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def reader(fake: FakeDcgm) -> Iterator[DcgmReader]:
    with reading() as reader:
        yield reader


def test_after_a_restart_of_the_engine_everything_is_created_again(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.xid(0, 48)
    reader.read()
    fake.restart()
    with pytest.raises(CollectorError, match=r"cannot read DCGM at unix:///engine: The connection .* \(-21\)"):
        reader.read()
    reader.close()
    reader.connect()
    facts = reader.read()
    assert (facts.watches, len(facts.gpus), facts.incidents, facts.problems) == (ALL_SYSTEMS, 2, (), ())


def test_a_configured_engine_that_does_not_run_is_an_error(fake: FakeDcgm) -> None:
    fake.stop()
    with pytest.raises(CollectorError, match="cannot connect to nv-hostengine at unix:///engine") as error:
        reader_of().connect()
    assert not isinstance(error.value, SourceAbsent)


def test_an_engine_that_hangs_ends_in_a_timeout(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.set(hang=True, hang_limit=0.05)
    with pytest.raises(CollectorError, match=r"Timeout \(-11\); restart nvidia-dcgm"):
        reader.read()


def test_a_group_that_another_client_deleted_is_created_again(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.set(groups={})
    with pytest.raises(CollectorError, match=r"Setting not configured \(-5\)") as error:
        reader.read()
    assert not str(error.value).startswith(NOT_ANSWERING)
    reader.close()
    reader.connect()
    assert (reader.read().watches, reader.read().problems) == (ALL_SYSTEMS, ())


@pytest.mark.parametrize("call", ["dcgmGroupCreate", "dcgmFieldGroupCreate"])
def test_an_engine_full_of_groups_is_reported_and_left(fake: FakeDcgm, call: str) -> None:
    fake.fail(call, -24)
    with pytest.raises(CollectorError, match="at most 64 groups"):
        reader_of().connect()
    assert fake.engine["clients"] == {}


@pytest.mark.parametrize("code", [-10, -11, -21])
def test_an_engine_that_is_gone_or_hangs_is_distinguished_from_every_other_error(fake: FakeDcgm, code: int) -> None:
    fake.fail("dcgmGetAllDevices", code)
    with reading() as reader, pytest.raises(CollectorError) as error:
        reader.read()
    assert str(error.value).startswith(NOT_ANSWERING)


@pytest.mark.parametrize("code", [-3, -12, -17, -20, -25, -56, -57, -67])
def test_an_error_of_a_responding_engine_is_not_reported_as_unresponsive(fake: FakeDcgm, code: int) -> None:
    fake.fail("dcgmConnect_v3", code)
    with pytest.raises(CollectorError) as error:
        reader_of().connect()
    assert not str(error.value).startswith(NOT_ANSWERING)


def test_a_paused_engine_is_reported(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.fail("dcgmGetAllDevices", -54)
    with pytest.raises(CollectorError, match=PAUSED):
        reader.read()


INSTALL = "install the bindings and libdcgm of the DCGM that nv-hostengine belongs to"


@pytest.mark.parametrize(("call", "code"), [("dcgmConnect_v3", -12), ("dcgmInit", -25), ("dcgmGroupCreate", -12)])
def test_bindings_of_another_version_are_an_error_that_names_what_to_install(
    fake: FakeDcgm, call: str, code: int
) -> None:
    fake.fail(call, code)
    with pytest.raises(Misfit, match=INSTALL):
        reader_of().connect()


def test_a_health_check_of_another_version_is_an_error_that_names_what_to_install(
    reader: DcgmReader, fake: FakeDcgm
) -> None:
    fake.fail("dcgmHealthCheck", -20)
    with pytest.raises(Misfit, match=INSTALL):
        reader.read()


def test_a_process_that_used_to_fit_is_spent_at_once(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    fake.fail("dcgmGetAllDevices", -12)
    with pytest.raises(Misfit):
        reader.read()
    assert reader.spent


def test_a_process_that_never_fitted_is_spent_after_a_minute(fake: FakeDcgm) -> None:
    fake.fail("dcgmInit", -25)
    moments = iter((0.0, 0.0, 59.0, 60.0))  # the first failure reads twice
    reader = DcgmReader(DcgmOptions(bindings=BINDINGS, address=ADDRESS), clock=lambda: next(moments))
    for spent in (False, False, True):
        with pytest.raises(Misfit):
            reader.connect()
        assert reader.spent is spent


def test_a_pass_without_a_connection_is_an_error() -> None:
    with pytest.raises(CollectorError, match="there is no connection"):
        reader_of().read()


def test_connecting_to_an_invalid_address_is_an_error(fake: FakeDcgm) -> None:
    with pytest.raises(CollectorError, match="expected unix:///path, host or host:port"):
        reader_of(address="/run/nv.sock").connect()
