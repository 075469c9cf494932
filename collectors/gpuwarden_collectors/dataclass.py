"""A faster `dataclass` for frozen classes, which share the code of their common methods.

The standard library compiles six methods for each class, which takes three to four times as long
(`benchmarks/bench_imports.py`), and a running daemon has 370 classes. Here only `__init__` is compiled; the other
methods are closures of the functions below. Fields, parameters and methods equal those of the standard library, except
for the annotations of `__init__`; the tests compare them. Classes with a base class are made by the standard library.

`replace` copies the fields without a call of `__init__`, which takes twice as long with the 138 keywords of a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Generic, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - so that it is exported
    from dataclasses import replace as replace  # noqa: PLC0414
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Do what `dataclasses.dataclass` does. Calls it for classes that are not frozen, or have other options."""
        if cls is not None:
            return dataclass(**options)(cls)
        if options.keys() <= {"frozen", "slots", "kw_only"} and options.get("frozen") and options.get("slots"):
            return lambda cls: _made(cls, **options)
        return dataclasses.dataclass(**options)

    def replace(instance: Any, /, **changes: Any) -> Any:
        """Do what `dataclasses.replace` does, in half the time. Calls it unless `__init__` only assigns the fields."""
        of = type(instance)
        names, values = _assigned(of)
        if not names or not changes.keys() <= names.keys():
            return dataclasses.replace(instance, **changes)
        made, assign = object.__new__(of), object.__setattr__
        for name, value in zip(names, values(instance), strict=True):
            assign(made, name, changes.get(name, value))
        return made


@cache
def _assigned(of: Any) -> tuple[dict[str, None], Callable[[Any], Any]]:
    """Return the fields by name, and a function that returns their values; no names if `__init__` does more."""
    fields = dataclasses.fields(of)
    plain = of.__new__ is object.__new__ and "__slots__" in vars(of) and not hasattr(of, "__post_init__")
    names = [field.name for field in fields] if plain and all(field.init for field in fields) else []
    return dict.fromkeys(names), _members(names)


_STANDARD: Any = dataclasses.make_dataclass("_STANDARD", (), frozen=True)
"""A frozen class of the standard library. Our classes have its options, so frozen classes can inherit from them."""
_PLAIN_BASES = {object, Generic}
_OWN = {"__init__", "__setattr__", "__delattr__"}


def _made(cls: type, **options: bool) -> Any:
    if not _PLAIN_BASES.issuperset(cls.__bases__) or not _OWN.isdisjoint(cls.__dict__):
        return dataclasses.dataclass(**options)(cls)
    made = _shared(cls, kw_only=options.get("kw_only", False))
    made.__dataclass_params__ = _STANDARD.__dataclass_params__
    return made


def _shared(cls: type, *, kw_only: bool) -> Any:
    own = cls.__dict__
    hashed = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
    made: Any = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=True, kw_only=kw_only)
    if any("InitVar" in str(field.type) for field in made.__dataclass_fields__.values()):
        raise TypeError(f"{cls.__name__} has an InitVar: use dataclasses.dataclass")
    fields = dataclasses.fields(made)
    made.__init__ = _init(made, fields)
    made.__setattr__ = _not_set
    made.__delattr__ = _not_deleted
    methods = {
        "__repr__": _repr,
        "__eq__": _equal([field.name for field in fields if field.compare]),
        "__getstate__": _state,
        "__setstate__": _set_state,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if not hashed:
        made.__hash__ = _hash([field.name for field in fields if (field.compare if field.hash is None else field.hash)])
    return made


def _init(made: type, fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    namespace: dict[str, object] = {"_dataclass_none": object(), "_dataclass_set": object.__setattr__}
    itself = "_dataclass_self" if any(field.name == "self" for field in fields) else "self"
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body: list[str] = []
    for field in fields:
        name, default, value = field.name, "", field.name if field.init else ""
        if field.default is not MISSING:
            namespace[f"_dataclass_default_{name}"] = field.default
            default = f"=_dataclass_default_{name}"
            value = value or f"_dataclass_default_{name}"
        elif field.default_factory is not MISSING:
            namespace[f"_dataclass_make_{name}"] = field.default_factory
            default = "=_dataclass_none"
            value = f"_dataclass_make_{name}()" + (f" if {name} is _dataclass_none else {name}" if field.init else "")
        if field.init:
            parameters[bool(field.kw_only)].append(f"{name}{default}")
        if value:
            body.append(f"_dataclass_set({itself}, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append(f"{itself}.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join([itself, *parameters[False], *named])}):"
    exec("\n ".join([head, *(body or ["pass"])]), namespace)  # noqa: S102 - made of names of fields alone
    init: Any = namespace["__init__"]
    init.__qualname__, init.__module__ = f"{made.__qualname__}.__init__", made.__module__
    return init  # type: ignore[no-any-return]


# --- the methods of all


def _members(names: list[str]) -> Callable[[Any], object]:
    """Return a function that returns these fields as a tuple, which is equal to itself even with a NaN in it."""
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda instance: (only(instance),)
    return attrgetter(*names) if names else lambda _: ()


def _equal(names: list[str]) -> Callable[[Any, Any], Any]:
    members = _members(names)

    def __eq__(self: Any, other: Any) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return members(self) == members(other)

    return __eq__


def _hash(names: list[str]) -> Callable[[Any], int]:
    members = _members(names)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(members(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _not_set(_: Any, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _not_deleted(_: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
