"""`dataclass` of the standard library, whose frozen classes share the methods that are the same for all of them.

The standard library compiles six methods for each class, a millisecond of CPU; a daemon has about 370 classes. Here `__init__` is compiled,
and the others are the functions below. What such a class does, its fields and its parameters are the same, and the tests compare them.
Those that inherit fields are made by the standard library, as are those of processes that load no collector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - so that it is exported
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`. Classes that are not frozen, have no slots or want more than that are made by it."""
        if cls is not None:
            return dataclasses.dataclass(cls)
        if options.keys() <= {"frozen", "slots", "kw_only"} and options.get("frozen") and options.get("slots"):
            return lambda cls: _made(cls, **options)
        return dataclasses.dataclass(**options)


_LIKE: Any = dataclasses.make_dataclass("_LIKE", (), frozen=True)
"""A class of the standard library. Its options are those of ours for who inherits fields of them, which must then be frozen, too."""


def _made(cls: type, **options: bool) -> Any:
    if any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
        return dataclasses.dataclass(**options)(cls)
    made = _shared(cls, kw_only=options.get("kw_only", False))
    made.__dataclass_params__ = _LIKE.__dataclass_params__
    return made


def _shared(cls: type, *, kw_only: bool) -> Any:
    own = cls.__dict__
    hashed = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
    made: Any = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=True, kw_only=kw_only)
    fields = dataclasses.fields(made)
    made.__compared__ = _getter([one.name for one in fields if one.compare])
    made.__hashed__ = _getter([one.name for one in fields if (one.compare if one.hash is None else one.hash)])
    made.__init__ = _init(made, fields)
    made.__setattr__ = _not_set
    made.__delattr__ = _not_deleted
    for name, method in _METHODS.items():
        if name not in own:
            setattr(made, name, method)
    if not hashed:
        made.__hash__ = _hash
    return made


def _getter(names: list[str]) -> Callable[[Any], object]:
    """Return what makes a tuple of these fields. Tuples are equal where their members are the same object, be it not equal to itself."""
    if len(names) > 1:
        return attrgetter(*names)
    return staticmethod(lambda self: tuple(getattr(self, name) for name in names))


def _init(made: type, fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    known: dict[str, object] = {"_not_given": object(), "_set": object.__setattr__}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body: list[str] = []
    for one in fields:
        name, default, value = one.name, "", one.name if one.init else ""
        if one.default is not MISSING:
            known[f"_default_{name}"] = one.default
            default = f"=_default_{name}"
            value = value or f"_default_{name}"
        elif one.default_factory is not MISSING:
            known[f"_make_{name}"] = one.default_factory
            default = "=_not_given"
            value = f"_make_{name}()" + (f" if {name} is _not_given else {name}" if one.init else "")
        if one.init:
            parameters[bool(one.kw_only)].append(f"{name}{default}")
        if value:
            body.append(f"_set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *named])}):"
    exec("\n ".join([head, *(body or ["pass"])]), known)  # noqa: S102 - made of names of fields alone
    init: Any = known["__init__"]
    init.__qualname__, init.__module__ = f"{made.__qualname__}.__init__", made.__module__
    return init  # type: ignore[no-any-return]


# --- the methods of all


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _not_set(_: Any, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _not_deleted(_: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_METHODS = {"__repr__": _repr, "__eq__": _equal, "__getstate__": _state, "__setstate__": _set_state}
