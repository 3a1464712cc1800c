"""A kernel's plans, one for each signature and target: from memory, from the on-disk cache, or by lowering."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pyschedule.errors import InternalError
from pyschedule.ir.signature import Signature
from pyschedule.runtime.cache import Entry, describe, digest_of, environment_digest
from pyschedule.runtime.compiler import Entrance, MachineCacheError, compile_program, parallel_entrance
from pyschedule.runtime.compiling import Compiling
from pyschedule.runtime.lowering import Definition, Lowering, lower, plan_of
from pyschedule.runtime.plan import Plan
from pyschedule.runtime.room import with_room
from pyschedule.runtime.warn import announce, logger, refuse_if_strict
from pyschedule.schedule.limits import UnrollLimits
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target

#: Held while anything is lowered or compiled: neither Numba nor isl gains from two at once.
compiling = Compiling()

_Key = tuple[Signature, Target]


@dataclass(frozen=True, slots=True)
class Specialisation:
    """A plan, and where on disk it and its machine code are kept (`None`: nowhere)."""

    plan: Plan
    entry: Entry | None


class Specialisations:
    """The plans and lowerings of one kernel.  Warnings come once for each signature and target."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._plans: dict[_Key, Specialisation] = {}
        self._lowerings: dict[_Key, Lowering] = {}
        self._announced: set[_Key] = set()

    @with_room
    def lowering(self, signature: Signature, target: Target) -> Lowering:
        with compiling:
            key = (signature, target)
            lowering = self._lowerings.get(key)
            if lowering is None:
                lowering = self._lowerings[key] = lower(self._definition, signature, target)
            self._announce(key, lowering.log.records)
            return lowering

    @with_room
    def plan(self, signature: Signature, target: Target) -> Specialisation:
        """The plan of calls with this signature."""
        with compiling:
            key = (signature, target)
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = self._from_disk(key) or self._made(key)
            self._announce(key, found.plan.records)
            return found

    @with_room
    def program(self, signature: Signature, target: Target, variant: str, types: tuple[Any, ...]) -> Entrance:
        """The compiled `"serial"` or `"parallel"` variant for arguments of these Numba types."""
        with compiling:
            special = self.plan(signature, target)
            try:
                return self._compiled(special, variant, types)
            except MachineCacheError:
                special = self._without_disk((signature, target))
                return self._compiled(special, variant, types)

    def _compiled(self, special: Specialisation, variant: str, types: tuple[Any, ...]) -> Entrance:
        text = special.plan.parallel if variant == "parallel" else special.plan.serial
        if text is None:
            raise InternalError(f"{special.plan.name} has no {variant} variant")
        program = compile_program(special.plan.name, variant, text, types, special.entry)
        return parallel_entrance(program) if variant == "parallel" else program

    def _without_disk(self, key: _Key) -> Specialisation:
        """The same plan again, with code that asks for no cache of machine code."""
        made = Specialisation(plan_of(self.lowering(*key), cache=False), None)
        self._plans[key] = made
        return made

    def _from_disk(self, key: _Key) -> Specialisation | None:
        entry = self._entry(key)
        plan = entry.load()
        if plan is None:
            logger.info("%s: no cached plan (cache miss %s)", self._definition.parsed.name, entry.path.name[:12])
            return None
        logger.info("%s: plan loaded (cache hit %s)", plan.name, entry.path.name[:12])
        return Specialisation(plan, entry)

    def _made(self, key: _Key) -> Specialisation:
        lowering = self.lowering(*key)
        entry = self._entry(key)
        plan = plan_of(lowering, cache=True)
        return Specialisation(plan, entry) if entry.save(plan) else self._without_disk(key)

    def _entry(self, key: _Key) -> Entry:
        parsed = self._definition.parsed
        signature, target = key
        constants = sorted(f"{name} = {describe(value)}" for name, value in dict(parsed.constants).items())
        return Entry.at(
            digest_of(
                environment_digest(),
                parsed.name,
                parsed.file,
                str(parsed.loc),
                parsed.source,
                repr(constants),
                repr(self._definition.schedule),
                repr([directive.loc for directive in self._definition.schedule.directives]),
                repr(signature),
                repr(target),
                repr(UnrollLimits.read(os.environ)),
            )
        )

    def _announce(self, key: _Key, records: tuple[Record, ...]) -> None:
        if key in self._announced:
            return
        schedule = self._definition.schedule
        refuse_if_strict(records, schedule.strict)  # again at each call, until it is no longer strict
        self._announced.add(key)  # first, as a warnings filter may turn a warning into an error
        announce(records, getattr(self._definition.parsed.function, "__module__", None) or "<unknown>")
