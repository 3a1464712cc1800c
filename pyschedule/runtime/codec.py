"""Frozen dataclasses as JSON and back, by the types that their fields declare."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists; what is left must be JSON already."""
    return dataclasses.asdict(value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def decode(kind: type[T], data: Any) -> T:
    """The dataclass that `encode` took apart; `ValueError` or `KeyError` for anything else."""
    value: T = _decode(kind, data)
    return value


def _decode(hint: Any, data: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(data, dict):
            raise ValueError(f"{data!r} is no {hint.__name__}")
        hints = _hints(hint)
        return hint(**{item.name: _decode(hints[item.name], data[item.name]) for item in dataclasses.fields(hint)})
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{data!r} is no tuple")
        if parts[-1:] == (Ellipsis,):
            return tuple(_decode(parts[0], item) for item in data)
        return tuple(_decode(part, item) for part, item in zip(parts, data, strict=True))
    if origin in (typing.Union, types.UnionType):
        return _decode_union(parts, data)
    if hint is type(None) and data is None:
        return None
    if isinstance(hint, type) and type(data) is hint:
        return data
    raise ValueError(f"{data!r} is no {hint}")


def _decode_union(parts: tuple[Any, ...], data: Any) -> Any:
    for part in parts:
        try:
            return _decode(part, data)
        except (ValueError, KeyError):
            continue
    raise ValueError(f"{data!r} is none of {parts}")
