"""The Python examples of the README and the documentation run, and print what they say they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A block of Python; after the words "It prints", what it prints (`...` stands for anything).
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints\n\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def examples(page: Path) -> list[tuple[int, str, str]]:
    """Line, code, expected output of each example of a page."""
    text = page.read_text()
    return [(text.count("\n", 0, match.start()) + 2, match[1], match[2] or "") for match in _EXAMPLE.finditer(text)]


@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    for line, code, expected in examples(page):
        # A kernel's source must be a file; the blank lines make its line numbers the page's.
        file = tmp_path / f"{page.stem}_{line}.py"
        file.write_text("\n" * (line - 1) + code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(file.read_text(), str(file), "exec"), namespace)
        if expected:
            pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
            assert re.search(pattern, printed.getvalue(), re.DOTALL), (
                f"{page.name}:{line} printed\n{printed.getvalue()}"
            )


def test_the_readme_opens_with_the_two_commands_and_shows_a_kernel():
    text = (ROOT / "README.md").read_text()
    opening = text[:1200]
    assert "make demo" in opening and "make test" in opening
    assert examples(ROOT / "README.md"), "the README has no example"


def test_the_make_targets_that_the_documentation_names_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    named = {
        name
        for page in pages
        for name in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", page.read_text(), re.MULTILINE)
        for name in name
        if name
    }
    assert named and named <= targets
