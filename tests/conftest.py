"""Options and surroundings that all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

#: Quick checks and the lower rooms first, so that a fault shows where it was made.
_ORDER = (
    "test_layout",
    "test_docs",
    "ir",
    "schedule",
    "frontend",
    "analysis",
    "transforms",
    "codegen",
    "runtime",
    "test_golden",
    "cases",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refresh-golden", action="store_true", help="write the golden files anew instead of comparing"
    )
    parser.addoption(
        "--random-schedules", type=int, default=6, metavar="N", help="random schedules a kernel, instead of 6"
    )
    parser.addoption(
        "--random-loops", type=int, default=60, metavar="N", help="random nests under directives, instead of 60"
    )
    parser.addoption(
        "--random-programs", type=int, default=60, metavar="N", help="random programs for the front end, not 60"
    )


def pytest_configure(config: pytest.Config) -> None:
    """An empty cache directory for the run, shared by its workers; the user's own is not touched."""
    # A shell starts what runs in the background deaf to Ctrl-C, and tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    directory = tempfile.mkdtemp(prefix="pyschedule-tests-")
    os.environ["PYSCHEDULE_CACHE_DIR"] = directory
    for name in ("PYSCHEDULE_STRICT", "PYSCHEDULE_LOG", "PYSCHEDULE_DEBUG"):
        os.environ.pop(name, None)
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        room = item.path.relative_to(here).parts[0].removesuffix(".py")
        return _ORDER.index(room) if room in _ORDER else len(_ORDER)

    items.sort(key=place)


@pytest.fixture
def refresh_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--refresh-golden"))
