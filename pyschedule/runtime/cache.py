"""The on-disk cache of lowered kernels, shared by processes.

An entry is a directory named by a digest of everything that its contents depend on:

    <cache>/<2 digits>/<digest>/plan.json            what a call needs to know, with a checksum
                                gemm_serial_*.py     the generated Numba module, and perhaps gemm_parallel_*.py
                                __pycache__/*.nb?    machine code, kept by Numba beside the module
                                __pycache__/*.json   the checksums of that machine code

Files appear whole (written aside, then renamed), and what fails its checksum counts as absent, so that neither
an interrupted run nor several processes at once can leave an entry that is half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pyschedule.runtime.codec import decode, encode
from pyschedule.runtime.plan import Plan
from pyschedule.runtime.warn import logger
from pyschedule.schedule.targets import host

_FORMAT = 1


# ---------------------------------------------------------------------------------------------------- keys


def digest_of(*parts: str) -> str:
    """One digest of several texts, none of which can run into the next."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


def describe(value: Any) -> str:
    """A constant that a function uses, as text that two values share only if they are the same constant."""
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.dtype} {value.shape} {content}"
    if isinstance(value, np.generic):
        return f"numpy {value.dtype} {value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{describe(key)}: {describe(item)}' for key, item in value.items())})"
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"function {value.__module__} {value.__qualname__} {code.co_code.hex()} {code.co_consts!r}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is not None:
        return f"named {getattr(value, '__module__', '')} {name}"
    return f"{type(value).__qualname__} {value!r}"


@cache
def package_digest() -> str:
    """The contents of this package: any change to it may change the code that it generates."""
    root = Path(__file__).resolve().parent.parent
    parts: list[str] = []
    for path in sorted(root.rglob("*.py")):
        parts += [path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")]
    return digest_of(*parts)


@cache
def environment_digest() -> str:
    """The versions of what generates and compiles code, and the machine it is for."""
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    features = llvm.get_host_cpu_features()
    return digest_of(
        str(_FORMAT),
        package_digest(),
        sys.version,
        sys.implementation.cache_tag or "",
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        features.flatten(),
        repr(host().matrix),  # the system may keep its registers from a process
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NUMBA_CPU_")),
    )


# --------------------------------------------------------------------------------------------------- files


def default_directory() -> Path:
    """`PYSCHEDULE_CACHE_DIR`, else the platform's place for caches."""
    chosen = os.environ.get("PYSCHEDULE_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pyschedule"


_unusable: set[str] = set()


def unusable(path: Path, reason: object) -> None:
    """Says once a directory that the cache does without it."""
    if str(path) not in _unusable:
        _unusable.add(str(path))
        logger.warning("cache directory %s cannot be used (%s); kernels are compiled anew", path, reason)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that other processes see all of it or none; raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class Entry:
    """The directory of one entry; it need not exist."""

    path: Path

    @staticmethod
    def at(digest: str) -> Entry:
        return Entry(default_directory() / digest[:2] / digest)

    def load(self) -> Plan | None:
        """The plan, or `None` where there is none or it is damaged."""
        file = self.path / "plan.json"
        try:
            data = json.loads(file.read_bytes())
            text = data["plan"]
            if data["digest"] != digest_of(text):
                raise ValueError("its checksum is wrong")
            return decode(Plan, json.loads(text))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.info("cache entry %s is damaged (%s); it is made anew", self.path, error)
            return None

    def save(self, plan: Plan) -> bool:
        """Whether the plan could be kept."""
        text = json.dumps(encode(plan))
        data = json.dumps({"digest": digest_of(text), "plan": text})
        try:
            write_whole(self.path / "plan.json", data.encode())
        except OSError as error:
            unusable(default_directory(), error)
            return False
        return True

    def module(self, variant: str, source: str) -> Path | None:
        """The file of a generated module with this text; `None` where it cannot be written."""
        file = self.path / f"{variant}.py"
        data = source.encode()
        try:
            if file.read_bytes() == data:
                return file
        except OSError:
            pass
        try:
            write_whole(file, data)
        except OSError as error:
            unusable(default_directory(), error)
            return None
        return file

    def load_binary(self, name: str) -> tuple[bytes, str] | None:
        """What `save_binary` kept under this name, or `None` where it is not there or damaged."""
        try:
            data = (self.path / f"{name}.cubin").read_bytes()
            notes = json.loads((self.path / f"{name}.json").read_bytes())
            if notes["digest"] == hashlib.sha256(data).hexdigest():
                return data, str(notes["entry"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return None

    def save_binary(self, name: str, data: bytes, entry: str) -> None:
        """Keeps GPU machine code and the name of its entry point, if it can."""
        notes = {"digest": hashlib.sha256(data).hexdigest(), "entry": entry}
        try:
            write_whole(self.path / f"{name}.cubin", data)
            write_whole(self.path / f"{name}.json", json.dumps(notes).encode())
        except OSError as error:
            unusable(default_directory(), error)

    # Numba keeps machine code as pickles without a checksum: a truncated or altered one could do anything.

    def seal(self, directory: Path, stem: str) -> None:
        """Notes the checksums of the machine code of the module `stem` in `directory`."""
        try:
            sums = {path.name: _checksum(path) for path in _machine_files(directory, stem)}
            write_whole(directory / f"{stem}.sums.json", json.dumps(sums).encode())
        except OSError as error:
            logger.debug("machine code in %s is not sealed: %s", directory, error)

    def verify(self, directory: Path, stem: str) -> bool:
        """Removes machine code that does not have the checksums noted by `seal`; false if it cannot be removed."""
        files = list(_machine_files(directory, stem))
        if not files:
            return True
        try:
            sums = json.loads((directory / f"{stem}.sums.json").read_bytes())
            if isinstance(sums, dict) and all(sums.get(path.name) == _checksum(path) for path in files):
                return True
        except (OSError, ValueError):
            pass
        logger.info("machine code of %s is damaged or unfinished; it is compiled anew", stem)
        self.drop(directory, stem)
        return not list(_machine_files(directory, stem))

    def drop(self, directory: Path, stem: str) -> None:
        for path in _machine_files(directory, stem):
            _quietly(path.unlink)


def _machine_files(directory: Path, stem: str) -> Iterable[Path]:
    try:
        return sorted(
            path
            for path in directory.iterdir()
            if path.name.startswith(f"{stem}.") and path.suffix in (".nbi", ".nbc")
        )
    except OSError:
        return ()


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        logger.debug("%s", error)
