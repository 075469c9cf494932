"""What somebody else leaves in the folder of checkpoints neither runs, nor crashes a restart, nor makes it wait.

With arrays, where NumPy is installed: `make test-torch` has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_job import CheckpointStore, NothingLoadable, Ranks, Refused
from support.job_world import ended, start
from support.quick import first_quick

FILES = 6000

FUZZ = """
import importlib.util, io, pickle, random, resource, struct, sys, warnings
from collections import Counter, OrderedDict, deque

warnings.simplefilter("ignore")
numpy = importlib.import_module("numpy") if importlib.util.find_spec("numpy") else None
from gpuwarden_job.encoding import MAGIC, NotPlain, decode, encode
from gpuwarden_job.formats import dump, load

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # what is announced is not allocated
chance = random.Random(int(sys.argv[2]))
values = [
    {"a": [1, -2.5, None, True, "x" * 50], "b": (b"bytes", bytearray(9), {1, 2}, frozenset({3}))},
    [OrderedDict(a=1), Counter("aab"), deque([1, 2], 2), 1j, range(9), slice(1, 2), 1 << 90],
    [[[[[[]]]]]],
]
if numpy is not None:
    values += [
        [numpy.arange(12.0).reshape(3, 4), numpy.asfortranarray(numpy.ones((2, 3))), numpy.zeros((0, 3)), numpy.array(5)],
        {"s": numpy.float64(1), "t": numpy.datetime64("2020-01-01"), "d": numpy.dtype([("a", "<f4"), ("b", "i8", (2,))])},
        [numpy.zeros(2, [("a", "<f4"), ("b", "S3")]), numpy.array(["a", "bc"])],
    ]
valid = []
for value in values:
    file = io.BytesIO()
    dump(value, file)
    valid.append(file.getvalue())
pieces = [
    b"\\x80\\x04cnumpy\\nndarray\\n(K\\x01\\x85\\x8c\\x01OC\\x08AAAAAAAAtR.", b"r\\xff\\xff\\xff\\x7f", b"l" + b"\\xff" * 8,
    struct.pack("<Q", 1 << 40), b"'descr': '|O', 'shape': (1,)", b"(" * 5000, b"\\x93NUMPY", b"[('a', '|O')]", b"l\\x01" + bytes(7),
    b"'shape': (99999999999,)", b"'shape': (-1,)", b"{'descr': [('a', [('b', '|O')])]}", b"S2147483647", b"V0",
]

def npy(descr, shape, rest=b""):
    header = ("{'descr': %s, 'fortran_order': False, 'shape': %s, }" % (descr, shape)).encode()
    return b"a\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(header)) + header + rest

written = [
    npy("'|O'", "(1,)", b"AAAAAAAA"), npy("[('x', '|O')]", "(1,)", b"AAAAAAAA"), npy("[('x', [('y', '|O', (2,))])]", "(1,)", b"A" * 16),
    npy("'<f8'", "(1099511627776,)"), npy("'<f8'", "(-1,)"), npy("'|V0'", "(9999999999999,)"), npy("'<f8'", "(0, 1 << 62)"),
    npy("'<f8'", "(0, 4611686018427387904, 4611686018427387904)"), npy("('<f8', (3,))", "(1,)", bytes(24)), npy("[" * 4000, "()"),
    npy("'<f8'", "(" * 4000), npy("'|S4611686018427387904'", "(1,)"), npy("'<M8[1000000000000000Y]'", "(1,)", bytes(8)),
    b"l" * 100_000, b"".join(b"l" + struct.pack("<Q", 1) for _ in range(50_000)), b"q" + bytes(8), b"i" + bytes(8), b"o" + bytes(8),
    b"k" + struct.pack("<Q", 2) + b"nn", b"m" + struct.pack("<Q", 2) + b"l" + bytes(8) + b"n", b"d", b"",
]

def forged(number):
    if number < len(written):
        return MAGIC + written[number]
    content = bytearray(chance.choice(valid))
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(content) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            content[at:at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            content[at:at] = chance.choice(pieces)
        elif kind == 2:
            del content[at:at + chance.randrange(1, 9)]
        elif kind == 3:
            content[at:at + 8] = struct.pack("<Q", chance.choice((0, 1, 255, len(content), 1 << 31, 1 << 40, (1 << 64) - 1)))
        else:
            other = chance.choice(valid)
            content[at:] = other[chance.randrange(len(other)):]
    head = chance.randrange(20)
    return bytes(content) if head else pickle.dumps([bytes(content)])

refused = 0
for number in range(int(sys.argv[1])):
    content = forged(number)
    try:
        value = load(io.BytesIO(content))
    except (NotPlain, ImportError):
        refused += 1
        continue
    if numpy is not None and isinstance(value, numpy.ndarray):
        assert not value.dtype.hasobject, value.dtype
    repr(value)
print("refused", refused, "arrays" if numpy is not None else "no arrays")
"""


@pytest.mark.parametrize("seed", range(3))
def test_no_forged_file_crashes_a_restart_or_is_read_as_more_than_plain_values(tmp_path: Path, seed: int) -> None:
    script = tmp_path / "fuzz.py"
    script.write_text(textwrap.dedent(FUZZ))
    code, output = ended(start(script, str(FILES), str(seed), run_dir=tmp_path))
    assert code == 0, output[-2000:]
    assert int(output.split()[1]) > FILES // 2


RESTART = """
import sys
from gpuwarden_job import CheckpointStore, Ranks
store = CheckpointStore(sys.argv[1], ranks=Ranks(), sharded=sys.argv[2] == "sharded")
loaded = store.load_latest()
store.save("next", 3)
print(loaded.state, [one.sequence for one in store.saved()], store.load_latest().state)
"""


def manifest(folder: Path, **changes: Any) -> None:
    """Forge the manifest of a whole folder, as an attacker does who knows the digest."""
    path = folder / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    body = {key: value for key, value in content.items() if key != "digest"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**body, "digest": digest}))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def empty_pipe(folder: Path) -> None:
    pipe(folder / "rank-00000.state")
    manifest(folder, files={"rank-00000.state": [0, hashlib.sha256().hexdigest()]})


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def copied(folder: Path, name: str) -> None:
    folder.rename(folder.with_name(name))


FORGED: dict[str, Callable[[Path], object]] = {
    "a pipe as the manifest": lambda folder: pipe(folder / "manifest.json"),
    "a pipe as the state": lambda folder: pipe(folder / "rank-00000.state"),
    "an empty pipe as the state": empty_pipe,
    "a device as the manifest": lambda folder: device(folder / "manifest.json"),
    "no ranks": lambda folder: manifest(folder, world=0),
    "a billion ranks": lambda folder: manifest(folder, world=10**9),
    "as many ranks as no files": lambda folder: manifest(folder, world=3),
    "true ranks": lambda folder: manifest(folder, world=True),
    "another number": lambda folder: manifest(folder, sequence=10**30),
    "another step": lambda folder: manifest(folder, step=-1),
    "the manifest of another one": lambda folder: copied(folder, "00000009-step-2"),
    "a number without an end": lambda folder: copied(folder, f"{'9' * 200}-step-2"),
    "a name with a null": lambda folder: manifest(folder, files={"rank-00000.state\0": [1, "0"], "rank-00000.state": [1, "0"]}),
    "a size without an end": lambda folder: (folder / "manifest.json").write_text('{"files": ' + "9" * 3_000_000 + "}"),
    "nested without an end": lambda folder: (folder / "manifest.json").write_text('{"extra": ' + "[" * 100_000 + "}"),
}  # fmt: skip


@pytest.mark.parametrize("kind", first_quick(8, ["one state", "sharded"]))
@pytest.mark.parametrize("case", FORGED)
def test_a_forged_checkpoint_is_passed_over_and_the_training_goes_on_saving(
    tmp_path: Path, case: str, kind: str
) -> None:
    store = CheckpointStore(tmp_path / "saved", ranks=Ranks(), sharded=kind == "sharded")
    store.save("old", 1)
    store.save("forged", 2)
    FORGED[case](tmp_path / "saved" / "00000002-step-2")
    script = tmp_path / "restart.py"
    script.write_text(RESTART)
    code, output = ended(start(script, tmp_path / "saved", kind, run_dir=tmp_path), 60.0)
    assert code == 0, output[-2000:]
    assert output.splitlines()[-1].startswith("old [1, "), output
    assert output.splitlines()[-1].endswith("next"), output


def test_nothing_but_pipes_is_said_at_once(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, ranks=Ranks())
    store.save("only", 1)
    pipe(tmp_path / "00000001-step-1" / "manifest.json")
    with pytest.raises(NothingLoadable, match="it is no regular file"):
        store.load_latest()


def test_arrays_of_numpy_come_back_as_they_were_and_objects_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    store = CheckpointStore(tmp_path, ranks=Ranks())
    fields = numpy.dtype([("a", "<f4"), ("b", "S3"), ("c", "U2"), ("d", "i8", (2,))])
    values = [
        numpy.arange(12.0).reshape(3, 4), numpy.asfortranarray(numpy.ones((2, 3))), numpy.zeros((0, 3)), numpy.array(5),
        numpy.zeros(2, fields), numpy.array(["a", "bc\u00fc"]), numpy.array([1, 2], ">i4"), numpy.arange(100_000)[::3],
        numpy.float64(1.5), numpy.datetime64("2020-01-01"), numpy.bool_(True), fields,
    ]  # fmt: skip
    store.save(values, 1)
    loaded = store.load_latest()
    assert loaded is not None
    for value, back in zip(values, loaded.state, strict=True):
        assert type(back) is type(value)
        assert (back.dtype, back.shape) == (value.dtype, value.shape) if hasattr(value, "dtype") else back == value
        assert numpy.array_equal(back, value) if hasattr(value, "dtype") else True
        assert not isinstance(back, numpy.ndarray) or back.flags.writeable
    for objects in (numpy.array([object()]), numpy.zeros(1, [("x", [("y", "O", (2,))])])):
        with pytest.raises(Refused):
            store.save(objects, 2)


def test_an_array_of_a_type_that_is_not_numpy_s_is_refused_at_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's format would keep bytes without a type, as of bfloat16 in a state of JAX: no restart could use them."""
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    rational = pytest.importorskip("numpy._core._rational_tests", reason="NumPy before 2").rational
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    store = CheckpointStore(tmp_path, ranks=Ranks())
    aligned = numpy.dtype([("a", "i1"), ("b", ">f4", (2,)), ("c", "M8[s]")], align=True)
    store.save([numpy.zeros(2, aligned), numpy.zeros(2, "f2"), numpy.longdouble(1)], 1)
    for value in (numpy.zeros(2, rational), numpy.dtype(rational), numpy.zeros(2, [("a", rational)])):
        with pytest.raises(Refused, match=r"rational.* at \['weights'\]"):
            store.save({"weights": value}, 2)
