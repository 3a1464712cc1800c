"""Every way pyschedule refuses, warns or fails, one class a rule's family, each with its place in the source."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """What a message needs to know of a source position (`ir.nodes.Location` has it)."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


def _placed(message: str, place: Place | None) -> str:
    return message if place is None else f"{place.file}:{place.line}:{place.column + 1}: {message}"


class ScheduleError(ValueError):
    """A malformed request: what was given, what is allowed, and where (`.place`)."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(_placed(message, place))
        self.place = place


class FrontendError(ScheduleError):
    """The function uses Python that a kernel cannot have; shows the line with a caret and the remedy."""


class LegalityError(ScheduleError):
    """In strict mode: a well-formed request that could not be proved safe."""


class OverlapError(ValueError):
    """An array that a kernel writes shares memory with another argument; nothing has been written."""


class ScheduleWarning(UserWarning):
    """A well-formed request that was skipped, because it could not be proved safe; results stay right."""


class KernelCancelled(RuntimeError):
    """A call was stopped by `kernel.cancel()`: what it had written stays, what follows was not started.

    `progress` says how far it got.
    """

    def __init__(self, message: str, progress: str = "") -> None:
        super().__init__(message)
        self.progress = progress


class KernelTimeout(KernelCancelled, TimeoutError):
    """A call was stopped because it took longer than its `timeout`."""


class InternalError(RuntimeError):
    """A fault of pyschedule itself, found by its own checks.  Please report it with the kernel."""


class Unsupported(Exception):
    """Raised inside analyses and back ends for what they do not handle; callers turn it into a logged reason."""

    def __init__(self, reason: str, place: Place | None = None) -> None:
        super().__init__(_placed(reason, place))
        self.reason = reason
        self.place = place
