"""The complete state of a training: parts, position in the data, random numbers, step, world.

A part is anything with `state_dict` and `load_state_dict`: model, optimizer, scheduler, scaler, sampler. Nothing here
imports torch or numpy; their random numbers are taken along where the job has loaded them. What is added to the parts
is plain, so that `torch.load` takes it with `weights_only=True`: numbers, text, lists, and torch's own states as
tensors.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Mapping
from typing import Any

State = dict[str, Any]


class StateMismatch(ValueError):  # noqa: N818
    """The saved parts differ from the parts to be restored."""


def capture(*, step: int, samples: int, world: int, **parts: Any) -> State:
    """Returns the state of a training.

    `samples`: number of samples used by all ranks together, in this epoch or in the whole training.
    """
    state = {name: part.state_dict() for name, part in parts.items()}
    counts = _plain({"step": step, "samples": samples, "world": world})
    return {**counts, "random": random_state(), "parts": state}


def restore(state: Mapping[str, Any], *, same_random: bool = True, **parts: Any) -> tuple[int, int]:
    """Restores the parts and returns (step, samples). Raises StateMismatch.

    Changes nothing unless the saved and present parts have the same names. `same_random`: restore the saved random
    state; pass False for ranks that load another rank's checkpoint.
    """
    saved = state["parts"]
    if missing := sorted(saved.keys() ^ parts.keys()):
        raise StateMismatch(
            f"only in the checkpoint or only in the job: {', '.join(missing)}; pass the same parts to both"
        )
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    if same_random:
        restore_random(state["random"])
    return state["step"], state["samples"]


def random_state() -> State:
    version, numbers, gauss = random.getstate()
    captured: State = {"python": [version, list(numbers), gauss]}
    if (numpy := sys.modules.get("numpy")) is not None:
        captured["numpy"] = _plain(numpy.random.get_state(legacy=False))
    if (torch := sys.modules.get("torch")) is not None:
        captured["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            captured["cuda"] = torch.cuda.get_rng_state()
    return captured


def restore_random(state: Mapping[str, Any]) -> None:
    """Restores the random state. Skips a generator that was not saved, or whose library is not loaded.

    Older checkpoints have tuples and arrays of numpy.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch is not None and "torch" in state:
        # Must be on the CPU, even if `map_location` put it elsewhere.
        torch.set_rng_state(state["torch"].cpu())
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"].cpu())


def _plain(value: Any) -> Any:
    """Converts numpy arrays and numbers to lists and numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def host_copy(value: Any) -> Any:
    """Returns a copy in host memory that the next optimizer step does not change.

    Tensors are recognised by their methods.
    """
    if callable(getattr(value, "detach", None)) and callable(getattr(value, "cpu", None)):
        tensor = value.detach()
        return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
    if isinstance(value, Mapping):
        return {key: host_copy(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(host_copy(item) for item in value)
    return copy.deepcopy(value)
