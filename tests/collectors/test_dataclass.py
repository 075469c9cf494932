"""Frozen classes of `gpuwarden_collectors.dataclass` do what those of the standard library do: each class here is made by both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, field
from itertools import product
from math import nan
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from gpuwarden_collectors.dataclass import dataclass, replace

Decorator = Callable[..., Callable[[type], Any]]
T = TypeVar("T")


def plain(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Point:
        """Has a docstring."""

        x: int
        y: float = nan
        kind: ClassVar[str] = "point"

    return Point


def named(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True, kw_only=True)
    class Named:
        later: int = 3
        first: str
        made: list[int] = field(default_factory=list)

    return Named


def mixed(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Mixed:
        first: int
        last: str = field(default="x", kw_only=True)
        second: tuple[int, ...] = ()
        fixed: str = field(default="f", init=False)
        own: dict[str, int] = field(default_factory=dict, init=False, hash=False)
        hidden: int = field(default=0, repr=False)
        beside: int = field(default=0, compare=False)
        hashed: int = field(default=0, compare=False, hash=True)

    return Mixed


def derived(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True, kw_only=True)
    class Base:
        a: int = 1
        b: int = 2

        def total(self) -> int:
            return self.a + self.b

    @decorate(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        c: int
        b: int = 5
        sum: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.total() + self.c)

    return Derived


def reckoned(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Reckoned:
        x: int
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(f"{self.x} is below 0")
            object.__setattr__(self, "twice", 2 * self.x)

    return Reckoned


def around_itself(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Around:
        x: int
        inner: list[object] = field(default_factory=list, compare=False)

        def __post_init__(self) -> None:
            self.inner.append(self)

    return Around


def of_odd_names(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Odd:
        self: int
        dataclass: int
        _set: int = 3

    return Odd


def generic(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Of(Generic[T]):
        x: T

    return Of


def an_error(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class ReasonError(Exception):
        reason: str

    return ReasonError


def of_a_site(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True, kw_only=True)
    class Ours:
        a: int = 1

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Theirs(Ours):
        b: int = 2

    return Theirs


def with_methods(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int)

        def __hash__(self) -> int:
            return 7

    return Own


def compared_by_own_means(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Own:  # noqa: PLW1641 - the decorator adds it
        x: int

        def __eq__(self, other: object) -> bool:
            return type(other).__name__ == "Own"

    return Own


def empty(decorate: Decorator) -> type:
    @decorate(frozen=True, slots=True)
    class Empty:
        pass

    return Empty


CASES: list[tuple[Callable[[Decorator], type], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (plain, [((1,), {}), ((1, 2.0), {}), ((), {"x": 3}), ((), {}), ((1, 2, 3), {})]),
    (named, [((), {"first": "a"}), ((), {"first": "a", "later": 4, "made": [1]}), ((1,), {"first": "a"}), ((), {})]),
    (
        mixed,
        [
            ((1,), {}),
            ((1,), {"beside": 4}),
            ((1,), {"hashed": 5}),
            ((1, (2,)), {"last": "y"}),
            ((1,), {"hidden": 2}),
            ((1,), {"fixed": "g"}),
        ],
    ),
    (reckoned, [((3,), {}), ((-1,), {})]),
    (around_itself, [((1,), {})]),
    (of_odd_names, [((1, 2), {}), ((), {"self": 3, "dataclass": 4}), ((), {})]),
    (generic, [((1,), {})]),
    (an_error, [(("x",), {})]),
    (derived, [((), {"c": 1}), ((), {"c": 1, "a": 4, "b": 6}), ((), {"a": 1})]),
    (of_a_site, [((), {}), ((), {"a": 2, "b": 3}), ((), {"c": 1})]),
    (with_methods, [((1,), {}), ((2,), {})]),
    (compared_by_own_means, [((1,), {}), ((2,), {})]),
    (empty, [((), {}), ((1,), {})]),
]
BOTH: tuple[Decorator, Decorator] = (dataclasses.dataclass, dataclass)


def outcome(act: Callable[..., object], *words: object, **more: object) -> object:
    """Return what it returns, or the type and the text of what it raises."""
    try:
        return act(*words, **more)
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return type(error), str(error)


def instances(make: Callable[[Decorator], type], arguments: list[Any]) -> Iterator[tuple[list[Any], type]]:
    for decorate in BOTH:
        cls = make(decorate)
        yield [outcome(cls, *words, **more) for words, more in arguments], cls


def parameters(cls: type) -> list[tuple[str, object, bool]]:
    every = inspect.signature(cls).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default is inspect.Parameter.empty) for parameter in every]


@pytest.mark.parametrize(("make", "arguments"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_instances_are_made_shown_compared_and_hashed_as_those_of_the_standard_library(
    make: Callable[[Decorator], type], arguments: list[Any]
) -> None:
    (standard, theirs), (shared, ours) = instances(make, arguments)
    assert list(map(repr, standard)) == list(map(repr, shared))
    assert parameters(theirs) == parameters(ours)
    for name in ("__match_args__", "__slots__", "__module__", "__qualname__"):
        assert getattr(theirs, name) == getattr(ours, name)
    shown = [
        [(field.name, field.init, field.repr, field.compare, field.kw_only) for field in dataclasses.fields(c)]
        for c in (theirs, ours)
    ]
    assert shown[0] == shown[1]
    for n, instance in enumerate(standard):
        for m, other in enumerate(standard):
            assert (instance == other) == (shared[n] == shared[m])
        assert outcome(hash, instance) == outcome(hash, shared[n])
        assert (instance == "x") == (shared[n] == "x")
    assert [isinstance(instance, ours) for instance in shared] == [
        isinstance(instance, theirs) for instance in standard
    ]


@pytest.mark.parametrize("decorate", BOTH)
def test_an_instance_does_not_change_and_a_changed_copy_is_another_one(decorate: Decorator) -> None:
    made: Any = mixed(decorate)
    original = made(1, last="y")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        original.first = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del original.first
    other = dataclasses.replace(original, first=2, beside=9)
    assert (original.first, other.first, other.last, other.beside) == (1, 2, "y", 9)
    assert other != original
    assert copy.deepcopy(original) == original == copy.copy(original)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        dataclasses.replace(original, nothing=1)
    with pytest.raises((TypeError, ValueError), match="init=False"):
        dataclasses.replace(original, fixed="g")


@pytest.mark.parametrize(
    ("make", "arguments"),
    [case for case in CASES if case[0] is not around_itself],  # a copy of one changes the list that both have
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_changed_copy_is_that_of_the_standard_library(
    make: Callable[[Decorator], type], arguments: list[Any]
) -> None:
    for made, cls in instances(make, arguments):
        names = [each.name for each in dataclasses.fields(cls)]
        changes: list[dict[str, Any]] = [{}, *({name: 5} for name in names)]
        for instance, change in product([result for result in made if isinstance(result, cls)], changes):
            standard, ours = outcome(dataclasses.replace, instance, **change), outcome(replace, instance, **change)
            assert type(ours) is type(standard)
            assert repr(ours) == repr(standard)
            assert [getattr(ours, name, None) for name in names] == [getattr(standard, name, None) for name in names]
            assert outcome(replace, instance, nothing=1) == outcome(dataclasses.replace, instance, nothing=1)


def test_a_changed_copy_is_made_without_the_first_method(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sent(a=1, b=(2,))
    monkeypatch.delattr(Sent, "__init__")
    changed = replace(original, a=3)
    assert (changed.a, changed.b, original.a) == (3, (2,), 1)
    assert changed.b is original.b


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A value that is sent to another process."""

    a: int
    b: tuple[int, ...] = ()
    c: Sent | None = None


def test_an_instance_is_pickled() -> None:
    sent = Sent(a=1, b=(2,), c=Sent(a=3))
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_members_that_are_the_same_object_are_equal_as_in_a_tuple() -> None:
    """The standard library has it so before 3.13."""

    @dataclass(frozen=True, slots=True)
    class One:
        x: float

    assert One(nan) == One(nan)
    assert One(float("nan")) != One(float("nan"))


def test_no_method_but_the_first_is_compiled_for_a_class() -> None:
    first, second = plain(dataclass), named(dataclass)
    for name in ("__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"):
        assert vars(first)[name].__code__ is vars(second)[name].__code__
    assert vars(first)["__init__"].__code__ is not vars(second)["__init__"].__code__


def test_an_instance_of_a_class_that_inherits_is_another_one() -> None:
    for decorate in BOTH:
        cls = plain(decorate)
        beside = type("Beside", (cls,), {})
        assert beside(1, 2.0) == beside(1, 2.0)
        assert beside(1, 2.0) != cls(1, 2.0)
        assert repr(beside(1, 2.0)).endswith("Beside(x=1, y=2.0)")


def test_what_the_first_method_could_not_do_is_refused() -> None:
    with pytest.raises(TypeError, match="Given has an InitVar"):

        @dataclass(frozen=True, slots=True)
        class Given:
            x: dataclasses.InitVar[int]


@pytest.mark.parametrize("name", ["__init__", "__setattr__"])
def test_a_class_with_a_first_method_of_its_own_is_as_in_the_standard_library(name: str) -> None:
    def of_its_own(self: object, *_: object) -> None:
        object.__setattr__(self, "x", 7)

    def made(decorate: Decorator) -> object:
        cls = type("Own", (), {"__annotations__": {"x": "int"}, name: of_its_own})
        return decorate(frozen=True, slots=True)(cls)(1).x

    assert outcome(made, dataclasses.dataclass) == outcome(made, dataclass)


def test_other_classes_are_those_of_the_standard_library() -> None:
    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        x: int

    @dataclass(slots=True)
    class Counter:
        x: int = 0

    @dataclass
    class Bare:
        x: int

    once: Any = dataclass
    direct = once(type("Direct", (), {"__annotations__": {"x": "int"}}), frozen=True, slots=True)
    with pytest.raises(FrozenInstanceError):
        direct(1).x = 2
    assert Bare(1) == Bare(1)
    assert Ordered(1) < Ordered(2)
    counter = Counter()
    counter.x += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)
