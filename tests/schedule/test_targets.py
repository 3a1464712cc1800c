"""The tables of the targets: what the features of a processor come to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyschedule.schedule.targets import amx, cuda, host

ALL = {"amx-tile": True, "amx-int8": True, "amx-bf16": True, "avx512bw": True}


def test_a_matrix_unit_multiplies_what_its_instructions_do() -> None:
    unit = amx(ALL)
    assert unit is not None
    assert unit.types == ("int8", "uint8", "bfloat16")
    assert (unit.depth(1), unit.depth(2)) == (64, 32)
    only = amx(ALL | {"amx-int8": False})
    assert only is not None
    assert only.types == ("bfloat16",)


@pytest.mark.parametrize("missing", [["amx-tile"], ["avx512bw"], ["amx-int8", "amx-bf16"], list(ALL)])
def test_no_matrix_unit_without_tiles_masks_or_instructions(missing: list[str]) -> None:
    assert amx({name: on and name not in missing for name, on in ALL.items()}) is None


def test_gpus_have_no_matrix_unit_of_this_kind() -> None:
    assert cuda("sm_90a").matrix is None


@pytest.mark.parametrize("setting", [{"NUMBA_CPU_FEATURES": "+avx2,+fma"}, {"NUMBA_CPU_NAME": "generic"}])
def test_features_that_the_compiler_may_not_use_are_not_there(setting: dict[str, str]) -> None:
    code = "from pyschedule.schedule.targets import host; print(host().matrix)"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | setting, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "None"


def test_the_cache_tells_machines_with_a_unit_from_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from pyschedule.runtime import cache

    digests = set()
    for unit in (None, amx(ALL), amx(ALL | {"amx-int8": False})):
        target = dataclasses.replace(host(), matrix=unit)
        monkeypatch.setattr(cache, "host", lambda target=target: target)
        digests.add(cache.environment_digest.__wrapped__())
    assert len(digests) == 3
