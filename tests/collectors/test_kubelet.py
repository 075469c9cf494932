"""kubelet is asked which containers have which devices: what its answer means, and everything else that may come from its socket."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpclib.const import Status

from gpuwarden.collect.schedule import LoopCollector
from gpuwarden_collectors.base import CollectorError, PassOutcome, SourceAbsent, host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kubelet.client import ANSWER_MOST, PodsReader
from gpuwarden_collectors.kubelet.facts import PodContainer, PodsFacts
from gpuwarden_collectors.kubelet.wire import CONTAINERS_MOST, Malformed, decoded
from support.kubelet import Kubelet, answer, container, devices, kubelet, pod, together, training
from support.needs import root_rights

RECORDED = Path(__file__).parents[1] / "data/kubelet"


GPU, MIG = "GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb51763", "MIG-2ce7a541-c516-5dbc-a76e-26cc100d9b55"


def given(facts: PodsFacts) -> dict[str, tuple[str, ...]]:
    return {
        f"{container.namespace}/{container.pod}/{container.container}": container.devices
        for container in facts.containers
    }


def test_only_gpus_are_read_of_all_that_kubelet_lists() -> None:
    response = answer(
        training("b", GPU, f"{GPU}::1", GPU),
        training("a", MIG, resource="nvidia.com/mig-1g.10gb"),
        training("shared", "nvidia0/vgpu1", resource="nvidia.com/gpu.shared"),
        training("renamed", f"{GPU}::7", resource="example.org/half-a-gpu"),
        training("network", "0000:3b:00.1", resource="nvidia.com/hostdev"),
        pod("team-b", "together", container("main", together("nvidia.com/gpu", GPU, MIG))),
        training("cards", "card0", resource="example.org/cards"),
        pod("kube-system", "plain", container("main")),
        pod("team-b", "claimed", container("main", claims=2), container("other", claims=1)),
    )
    facts = decoded(response)
    assert given(facts) == {
        "team-a/a/main": (MIG,),
        "team-a/b/main": (GPU, f"{GPU}::1"),
        "team-a/renamed/main": (f"{GPU}::7",),
        "team-a/shared/main": ("nvidia0/vgpu1",),
        "team-b/together/main": (GPU, MIG),
    }
    assert facts.claims == 2
    assert decoded(b"") == PodsFacts()


def recorded(number: int) -> bytes:
    return (RECORDED / f"list-{number}.bin").read_bytes()


def test_what_a_kubelet_answered_is_read() -> None:
    def gpu(first: str) -> str:
        return f"GPU-{first}3c9e1a-7d42-4b8f-a1c6-5e0f2d9b8a37"

    assert given(decoded(recorded(1))) == {
        "team-b/two-node7/left": (gpu("4f"), gpu("5c")),
        "team-b/two-node7/right": (gpu("69"),),
        "team-c/migs-node7/main": ("MIG-0701004d-8e15-5f3a-b7c2-604d9e1a83f7",),
        "team-g/best-node7/main": (gpu("76"),),
        "team-g/guar.with-dots-node7/main": (gpu("1b"),),
        "team-i/init-node7/main": (gpu("28"),),
        "team-i/init-node7/sidecar": ("MIG-0702004d-8e15-5f3a-b7c2-604d9e1a83f7",),
    }


async def test_the_order_in_which_kubelet_lists_means_nothing(asked: Kubelet, path: Path) -> None:
    """Kubelet walks through Go's maps, so that each answer has another order."""
    asked.response, other = recorded(1), recorded(2)
    reader = PodsReader(path)
    first = await reader.read()
    assert asked.response != other
    asked.response = other
    assert await reader.read() is first


def test_names_and_numbers_of_containers_are_bounded() -> None:
    odd = decoded(answer(pod("n" * 5000, "\n\xff", container("c", devices("nvidia.com/gpu", *map(str, range(1000)))))))
    (only,) = odd.containers
    assert (len(only.namespace), only.pod, len(only.devices)) == (253, "\nÿ", 256)
    many = decoded(answer(*(training(f"pod-{n}", GPU) for n in range(CONTAINERS_MOST + 9))))
    assert len(many.containers) == CONTAINERS_MOST


@pytest.mark.parametrize(
    "response",
    [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\xff" * 11, answer(training("a", GPU))[:-3], b"\x0a\x02\x0c\x00", b"\x09\0\0"],
    ids=["no length", "cut off", "a group", "a long number", "half an answer", "a group within", "half of 64 bits"],
)
def test_what_is_no_such_message_is_refused(response: bytes) -> None:
    with pytest.raises(Malformed):
        decoded(response)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def asked(path: Path) -> Iterator[Kubelet]:
    with kubelet(path, answer(training("a", GPU))) as server:
        yield server


pytestmark = pytest.mark.timeout(120)
ALONE = PodsFacts(containers=(PodContainer(namespace="team-a", pod="a", container="main", devices=(GPU,)),))


async def test_kubelet_is_asked_again_and_what_is_the_same_is_the_same_object(asked: Kubelet, path: Path) -> None:
    reader = PodsReader(path)
    first = await reader.read()
    assert first == ALONE
    assert await reader.read() is first
    asked.response = answer(*(training(f"pod-{n:04d}", GPU) for n in range(900)))
    assert len((await reader.read()).containers) == 900, "decoded in a thread"
    asked.response = b""
    assert await reader.read() == PodsFacts()


async def test_a_socket_that_is_replaced_is_found_and_a_dead_kubelet_is_no_host_without_one(
    asked: Kubelet, path: Path
) -> None:
    reader = PodsReader(path)
    await reader.read()
    asked.stop()
    with pytest.raises(CollectorError, match="Connection refused; is kubelet running"):
        await reader.read()
    path.unlink()
    with pytest.raises(CollectorError, match="there is no such socket") as gone:
        await reader.read()
    assert not isinstance(gone.value, SourceAbsent)
    asked.start()
    assert await reader.read() == ALONE


async def test_a_kubelet_that_has_just_started_does_not_know_its_pods_yet(asked: Kubelet, path: Path) -> None:
    """Kubelet 1.36 serves this socket before it has the pods from its sources."""
    now = 1000.0
    reader = PodsReader(path, lambda: Stamp(now, now))
    assert await reader.read() == ALONE
    asked.stop()
    asked.response = answer(pod("kube-system", "static", container("main")))
    asked.start()
    assert await reader.read() == ALONE
    now += 59
    assert await reader.read() == ALONE
    now += 1
    assert await reader.read() == PodsFacts(), "a minute later it knows"
    asked.response = answer(training("b", GPU))
    assert given(await reader.read()) == {"team-a/b/main": (GPU,)}
    asked.response = b""
    assert await reader.read() == PodsFacts(), "and it has not started again"


async def test_pods_that_a_new_kubelet_names_count_at_once(asked: Kubelet, path: Path) -> None:
    reader = PodsReader(path)
    assert await reader.read() == ALONE
    asked.stop()
    asked.response = answer(training("b", GPU))
    asked.start()
    assert given(await reader.read()) == {"team-a/b/main": (GPU,)}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status.UNIMPLEMENTED, "it has no PodResourcesLister v1.*1.20 .UNIMPLEMENTED: of the test."),
        (Status.RESOURCE_EXHAUSTED, "it refuses for now: too many programs ask it"),
        (Status.INTERNAL, "it answers with an error .INTERNAL"),
    ],
)
async def test_each_error_of_kubelet_has_a_text_of_its_own(
    asked: Kubelet, path: Path, status: Status, text: str
) -> None:
    asked.status = status
    with pytest.raises(CollectorError, match=f"cannot ask kubelet at {path} which pods have GPUs: {text}"):
        await PodsReader(path).read()


async def test_an_answer_of_16_mib_is_cut_off(asked: Kubelet, path: Path) -> None:
    asked.response = answer(*(training(f"pod-{n}", GPU) for n in range(3))) + b"\0" * (16 << 20)
    with pytest.raises(CollectorError, match=f"the answer is longer than {ANSWER_MOST >> 20} MiB"):
        await PodsReader(path).read()


async def test_another_program_behind_the_socket_is_not_believed(asked: Kubelet, path: Path) -> None:
    asked.response = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(CollectorError, match="the answer is not PodResourcesLister v1's"):
        await PodsReader(path).read()
    asked.stop()
    path.unlink()

    async def no_http2(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        writer.close()

    async with await asyncio.start_unix_server(no_http2, path):
        with pytest.raises(CollectorError, match="the connection ended"):
            await PodsReader(path).read()


async def test_a_compressed_answer_which_nobody_asked_for_is_an_error_of_kubelet_s(asked: Kubelet, path: Path) -> None:
    asked.compressed = True
    with pytest.raises(CollectorError, match=r"cannot ask kubelet .*the answer cannot be read \(.*[Cc]ompress"):
        await PodsReader(path).read()


async def test_without_a_kubelet_there_is_nothing_to_read(path: Path) -> None:
    with pytest.raises(SourceAbsent, match=r"no such socket; start kubelet, or set kubernetes\.kubelet_socket"):
        await PodsReader(path).read()


def test_who_may_not_open_the_socket_reads_what_to_do(asked: Kubelet, path: Path, tmp_path: Path) -> None:
    root_rights()
    path.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    script = (
        "import asyncio, os, sys; from pathlib import Path; from gpuwarden_collectors.kubelet.client import PodsReader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: asyncio.run(PodsReader(Path(sys.argv[1])).read())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert "CollectorError" in done.stdout, done.stderr
    assert "permission denied; run as root" in done.stdout
    assert "podSecurityContext.seLinuxOptions.type of the chart" in done.stdout


@pytest.mark.slow
async def test_a_kubelet_that_hangs_costs_its_deadline_and_nothing_later(asked: Kubelet, path: Path) -> None:
    asked.hangs = True
    collector = LoopCollector("pods", PodsReader(path).read, 3.0, host_clock)
    late = await collector.observe()
    assert (late.outcome, late.error) == (PassOutcome.TIMED_OUT, "pods has not responded within 3 s")
    asked.hangs = False
    assert (await collector.observe()).facts == ALONE


async def test_a_socket_that_nobody_accepts_from_is_a_missed_deadline(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        collector = LoopCollector("pods", PodsReader(path).read, 0.2, host_clock)
        outcomes = [(await collector.observe()).outcome for _ in range(4)]
    assert set(outcomes) <= {PassOutcome.TIMED_OUT, PassOutcome.FAILED}
    assert outcomes[0] is PassOutcome.TIMED_OUT
