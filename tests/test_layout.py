"""The rules of the tree itself: which room imports which, how long a module is, what the documentation names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("pyschedule/**/*.py"), *ROOT.glob("operators/**/*.py")])
TEXTS = sorted(
    path
    for pattern in (
        "pyschedule/**/*.py",
        "operators/**/*.py",
        "tests/**/*.py",
        "benchmarks/**/*.py",
        "*.md",
        "docs/*.md",
    )
    for path in ROOT.glob(pattern)
)
LONGEST = 500


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_rooms_import_only_from_the_rooms_below_them():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_an_import_that_runs_back_up_is_caught(tmp_path):
    for package in ("pyschedule", "operators"):
        for path in (ROOT / package).rglob("*.py"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "pyschedule" / "ir" / "fault.py").write_text("import pyschedule.transforms\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    assert "pyschedule.ir.fault" in result.stdout


def test_operators_use_nothing_but_the_public_interface():
    for path in ROOT.glob("operators/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            private = [name for name in names if name.startswith("pyschedule.")]
            assert not private, f"{path.name}:{node.lineno} imports {private}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_one_subject_and_at_most_500_lines(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= LONGEST, f"{path.relative_to(ROOT)} has {len(lines)} lines; split it by subject"
    assert not lines or ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} has no docstring"


def test_no_file_names_a_place_on_somebodys_machine():
    places = re.compile(r"(?<![\w./~-])/(?:home|root|work|tmp|Users|mnt|opt|usr)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if places.search(line) and path != Path(__file__)
    ]
    assert not found, "\n".join(found)


def test_every_environment_variable_is_documented():
    used = {name for path in MODULES for name in re.findall(r"PYSCHEDULE_[A-Z_]+[A-Z]", path.read_text())}
    documented = "\n".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert used, "no variable found: is the pattern right?"
    missing = sorted(name for name in used if name not in documented)
    assert not missing, f"not in README.md or docs/: {missing}"


def test_every_room_is_in_the_picture():
    picture = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.parent.name for path in ROOT.glob("pyschedule/*/__init__.py")}
    missing = sorted(room for room in rooms if f"{room}/" not in picture)
    assert not missing, f"docs/architecture.md does not mention {missing}"


def test_importing_is_light():
    heavy = ("sympy", "networkx", "pandas", "islpy", "matplotlib", "dask")
    code = f"import sys, pyschedule; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
