"""A process that talks to NVML through the real nvidia-ml-py, one expression at a time.

A process of its own, since a library once loaded stays, hangs take the caller with them and crashes too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from support.fake_nvml_library import FakeNvml

NVML_ERROR_NOT_SUPPORTED = 3


class NvmlClient:
    """`ask("nvmlDeviceGetTemperature(gpu(3), 0)")` gives the value, `code(…)` the nvmlReturn (0: no error)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Raises EOFError when the process is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answers_within(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def ask(self, expression: str) -> Any:
        self.send(expression)
        answer = self.receive()
        assert "value" in answer, (expression, answer)
        return answer["value"]

    def code(self, expression: str) -> int:
        self.send(expression)
        return int(self.receive().get("code", 0))


def field(client: NvmlClient, gpu: int, identifier: int, link: int = 0) -> int | None:
    """The value by its type, or None where the field is not supported."""
    (answer,) = client.ask(f"nvmlDeviceGetFieldValues(gpu({gpu}), [({identifier}, {link})])")
    if answer["nvmlReturn"] == NVML_ERROR_NOT_SUPPORTED:
        return None
    assert answer["nvmlReturn"] == 0
    member = {1: "uiVal", 3: "ullVal", 5: "siVal"}[answer["valueType"]]
    return int(answer["value"][member])


@contextlib.contextmanager
def nvml_client(fake: FakeNvml, *, initialise: bool = True) -> Iterator[NvmlClient]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, **fake.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            client = NvmlClient(process)
            if initialise:
                client.ask("nvmlInit()")
            yield client
        finally:
            process.kill()


def _plain(value: Any) -> Any:
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return vars(value) if hasattr(value, "__dict__") and vars(value) else str(value)


def _answer(expression: str, names: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": _plain(eval(expression, names))}
    except names["NVMLError"] as error:
        return {"code": error.value}
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it
        return {"exception": type(error).__name__}


def _serve() -> None:
    import pynvml

    def filled(call: Any, device: Any, structure: Any) -> Any:
        call(device, ctypes.byref(structure))
        return structure

    def gpm(before: Any, after: Any, *metrics: int) -> list[tuple[int, float]]:
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        query.sample1, query.sample2 = before, after
        for place, metric in enumerate(metrics):
            query.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(query)
        return [(metric.nvmlReturn, metric.value) for metric in query.metrics[: len(metrics)]]

    def cost(call: Any) -> float:
        """Milliseconds of CPU that `call()` took, whether it gives an answer or not."""
        begun = time.thread_time_ns()
        with contextlib.suppress(pynvml.NVMLError):
            call()
        return (time.thread_time_ns() - begun) / 1e6

    def sweep_while_waiting(event_set: Any, passes: int) -> list[int]:
        """The temperatures read while another thread sits in nvmlEventSetWait."""
        thread = threading.Thread(target=pynvml.nvmlEventSetWait_v2, args=(event_set, 60_000), daemon=True)
        thread.start()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetTemperature(gpu, 0) for _ in range(passes) for gpu in gpus]

    names = vars(pynvml) | {"gpu": pynvml.nvmlDeviceGetHandleByIndex, "kept": {}}
    names |= {"filled": filled, "gpm": gpm, "cost": cost, "sweep_while_waiting": sweep_while_waiting}
    for line in sys.stdin:
        print(json.dumps(_answer(line, names)), flush=True)  # noqa: T201 - the pipe to the parent


if __name__ == "__main__":
    _serve()
