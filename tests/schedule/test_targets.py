"""The tables of the targets: what the features of a processor come to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyschedule.ir.types import Scalar
from pyschedule.schedule.targets import amx, cuda, dot_products, host

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


def test_vectors_multiply_groups_of_integers_by_the_instructions_there_are() -> None:
    fused, pairs = (dot_products({"avx512bw": True, "avx512vnni": vnni}) for vnni in (True, False))
    assert fused is not None
    assert pairs is not None
    int8, uint8, int16 = (Scalar(name) for name in fused.types)
    # Bytes are multiplied as they are where one has signs and the other none.
    assert fused.operands(uint8, int8) == (uint8, int8, 0)
    assert fused.operands(int8, int8) == (uint8, int8, 128)
    assert fused.operands(uint8, uint8) == (int8, uint8, -128)
    assert fused.operands(int16, uint8) == fused.operands(int16, int16) == (int16, int16, 0)
    assert pairs.operands(int8, int8) == (int16, int16, 0)
    assert dot_products({"avx512vnni": True}) is None
    wide, half = {"avx512bw": True}, {"avx2": True}
    found = [
        dot_products(features) for features in (wide | half | {"avxvnni": True}, half | {"avxvnni": True}, half)
    ]
    assert [unit and unit.name for unit in found] == ["AVX-512", "AVX-VNNI", "AVX2"]


def test_gpus_have_no_matrix_unit_of_this_kind() -> None:
    assert cuda("sm_90a").matrix == ()


@pytest.mark.parametrize("setting", [{"NUMBA_CPU_FEATURES": "+avx,+fma"}, {"NUMBA_CPU_NAME": "generic"}])
def test_features_that_the_compiler_may_not_use_are_not_there(setting: dict[str, str]) -> None:
    code = "from pyschedule.schedule.targets import host; print(host().matrix)"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | setting, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "()"


def test_the_cache_tells_machines_with_a_unit_from_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from pyschedule.runtime import cache

    digests = set()
    for unit in (None, amx(ALL), amx(ALL | {"amx-int8": False}), dot_products(ALL)):
        target = dataclasses.replace(host(), matrix=() if unit is None else (unit,))
        monkeypatch.setattr(cache, "host", lambda target=target: target)
        digests.add(cache.environment_digest.__wrapped__())
    assert len(digests) == 4
