"""The default format with PyTorch: `weights_only=True` loads it, and what it would not load is refused at save.

`saved_before` holds checkpoints as 0.1.0 writes them, with torch 2.13 and numpy 2.4. Without PyTorch: test_formats.py.
"""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_job import CheckpointStore, Ranks, Refused, Undecodable, capture, load_trusted, restore
from support.job_world import Part
from support.torch_world import OLD_TORCH_WARNS, require_torch

require_torch()
torch: Any = importlib.import_module("torch")
numpy: Any = importlib.import_module("numpy")

pytestmark = OLD_TORCH_WARNS

BEFORE = Path(__file__).parent / "saved_before"


class Kept:
    """The state of any part."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state


def of(folder: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder, ranks=Ranks(), **options)


def training() -> dict[str, Any]:
    """Its parts, after a few steps."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 2)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def drawn() -> tuple[Any, ...]:
    """Return the next value of each generator."""
    return random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), torch.rand(1).item()


@pytest.mark.parametrize("beside", [False, True], ids=["save", "save_async"])
def test_a_state_is_loaded_with_weights_only_and_everything_goes_on_from_it(tmp_path: Path, beside: bool) -> None:
    random.gauss(0, 1)  # leaves a second one for the next call
    numpy.random.randn()
    parts = training()
    state = capture(step=numpy.int64(3), samples=torch.tensor(24), world=1, **parts)
    store = of(tmp_path)
    (store.save_async if beside else store.save)(state, 3)
    store.flush()
    wanted = drawn()

    plain = torch.load(next(tmp_path.glob("*/rank-*.state")), weights_only=True)
    assert same(plain, state)
    loaded = of(tmp_path).load_latest()
    assert loaded is not None
    fresh = training()
    assert restore(loaded.state, **fresh) == (3, 24)
    assert drawn() == wanted
    assert all(same(fresh[name].state_dict(), parts[name].state_dict()) for name in parts)


def test_the_random_numbers_of_a_numpy_with_another_generator_go_on_too(tmp_path: Path) -> None:
    numpy.random.set_bit_generator(numpy.random.Philox(3))
    try:
        of(tmp_path).save(capture(step=1, samples=8, world=1), 1)
        wanted = drawn()
        loaded = of(tmp_path).load_latest()
        assert loaded is not None
        restore(loaded.state)
        assert drawn() == wanted
    finally:
        numpy.random.set_bit_generator(numpy.random.MT19937(3))


def test_random_numbers_are_left_alone_where_numpy_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(tmp_path).save(capture(step=1, samples=8, world=1), 1)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert "numpy" not in capture(step=1, samples=8, world=1)["random"]
    wanted = random.random(), torch.rand(1).item()
    loaded = of(tmp_path).load_latest()
    assert loaded is not None
    restore(loaded.state)
    assert (random.random(), torch.rand(1).item()) == wanted


ODD: dict[str, Callable[[], Any]] = {
    "an array": lambda: numpy.arange(3),
    "a learning rate of numpy": lambda: [{"lr": numpy.float64(0.1)}],
    "a generator": lambda: numpy.random.default_rng(1),
    "a class of the job": lambda: Part(1),
    "a function": lambda: print,
    "a key": lambda: {numpy.int64(1): 2},
    "a very large number": lambda: 1 << 3000,
    "beside many tensors": lambda: [*(torch.ones(10) for _ in range(50)), Path("x")],
    "on a tensor": lambda: _with_attribute(torch.ones(3)),
    "on a dictionary": lambda: _with_attribute(torch.nn.Linear(1, 1).state_dict()),
}


def _with_attribute(value: Any) -> Any:
    value.more = Path("x")
    return value


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("beside", [False, True], ids=["save", "save_async"])
def test_what_torch_would_not_load_is_refused_at_save_and_the_part_named(
    tmp_path: Path, name: str, beside: bool
) -> None:
    store = of(tmp_path)
    store.save(capture(step=1, samples=8, world=1, sampler=Part(1)), 1)
    state = capture(step=2, samples=16, world=1, sampler=Part(ODD[name]()))
    with pytest.raises(Refused, match=r"step 2 was not saved.*the part sampler holds a .*load=load_trusted"):
        (store.save_async if beside else store.save)(state, 2)
    store.flush()
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.step == 1


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, dtype=torch.bfloat16), torch.nn.Parameter(torch.zeros(2)), torch.eye(3).to_sparse(), torch.tensor(7),
        torch.Size([1, 2]), torch.float16, torch.zeros(3, dtype=torch.bool)[::2], torch.empty(0),
    ],
    ids=["bfloat16", "parameter", "sparse", "number", "size", "dtype", "slice", "empty"],
)  # fmt: skip
def test_what_torch_loads_is_saved(tmp_path: Path, value: Any) -> None:
    of(tmp_path).save({"value": value}, 1)
    assert of(tmp_path).load_latest() is not None


def test_the_check_copies_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is as large as the memory of a GPU, and is inspected at each save."""
    written = 0
    save = torch.save

    def counted(value: Any, file: Any) -> None:
        nonlocal written
        save(value, file)
        written += file.tell()

    monkeypatch.setattr(torch, "save", counted)
    of(tmp_path).save({"weights": [torch.zeros(1 << 20) for _ in range(4)]}, 1)
    assert written < 4 * (4 << 20) + 100_000


@pytest.mark.parametrize("name", ["torch", "pickled"])
def test_a_checkpoint_from_before_is_loaded_once_it_is_trusted_and_the_next_one_without(
    tmp_path: Path, name: str
) -> None:
    """`torch`: by the example, with numpy's random numbers. `pickled`: tensors in what was the default format."""
    shutil.copytree(BEFORE / name, tmp_path / "saved")
    with pytest.raises(Undecodable, match=r"(numpy|perhaps a pickle).*trust.*load it once with .*load=load_trusted"):
        of(tmp_path / "saved").load_latest()
    loaded = of(tmp_path / "saved", load=load_trusted).load_latest()
    assert loaded is not None
    parts: dict[str, Any] = {part: Kept() for part in loaded.state["parts"]}
    assert restore(loaded.state, **parts)[0] == 10
    wanted = drawn()
    restore(loaded.state, **parts)
    assert drawn() == wanted
    of(tmp_path / "saved").save(capture(step=11, samples=88, world=1, **parts), 11)
    newest = of(tmp_path / "saved").load_latest()
    assert newest is not None
    assert newest.step == 11


def test_a_pickled_checkpoint_from_before_with_numpy_s_random_numbers_is_resumed_once_it_is_trusted(
    tmp_path: Path,
) -> None:
    shutil.copytree(BEFORE / "numpy", tmp_path / "saved")
    loaded = of(tmp_path / "saved", load=load_trusted).load_latest()
    assert loaded is not None
    part = Part(None)
    assert restore(loaded.state, model=part) == (10, 80)
    assert part.value == 1.5
    assert (random.random(), numpy.random.rand()) == (0.6229016948897019, 0.22199317108973948)
