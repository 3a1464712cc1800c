"""The loops of machine code, found in its text: each branch back to where it comes from, and what is between."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A function of a CPU's assembly, from its label to LLVM's end mark.
_FUNCTION = re.compile(r"^([_A-Za-z][\w$.]*):[^\n]*\n(.*?)^\.?Lfunc_end", re.S | re.M)
#: Numba's entry from Python, and what it links in, are not the kernel.
_AROUND = ("cpython", "cfunc", "NRT_", "numba_")
_CPU_LABEL = re.compile(r"^(\.?LBB\w+):")
_CPU_BRANCH = re.compile(r"^[a-z.]+\s.*?(\.?LBB\w+)$")
_GPU_INSTRUCTION = re.compile(r"^/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)([^;]*);")
_GPU_LABEL = re.compile(r"^(\.L_[\w.]+):")


@dataclass(frozen=True)
class Code:
    """`instructions` in order, and `loops` as half-open ranges of them, one for each backward branch."""

    instructions: tuple[str, ...]
    loops: tuple[tuple[int, int], ...]

    @property
    def innermost(self) -> list[list[str]]:
        """The instructions of each loop in which there is no other, without those that only wait for a lock."""
        return [
            list(self.instructions[first:last])
            for first, last in self.loops
            if not any(first <= other < end <= last for other, end in self.loops if (other, end) != (first, last))
        ]

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, one)) for one in self.instructions)

    def turns(self, pattern: str) -> list[int]:
        """How many instructions of a kind each innermost loop does a turn, for the loops that have any."""
        counts = [sum(bool(re.search(pattern, one)) for one in body) for body in self.innermost]
        return [count for count in counts if count]


#: A vector register of x86 or of Arm, and an address on the stack.
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qvz]\d+\b")
_STACK = re.compile(r"\(%[er]sp|\[sp\b")
_STORE = re.compile(r"^v?movu?a?[pd]\w*\s+%[xyz]mm\d+,\s*\S*\(|^v?movdq\w*\s+%[xyz]mm\d+,\s*\S*\(|^st\w*\s")


def vector_spills(instructions: list[str]) -> list[str]:
    """The instructions that move a vector to the stack, or from there."""
    return [one for one in instructions if _VECTOR.search(one) and _STACK.search(one)]


def vector_stores(instructions: list[str]) -> list[str]:
    """The instructions that move a vector to memory, the stack included."""
    return [one for one in instructions if _VECTOR.search(one) and _STORE.search(one)]


def of_cpu(assembly: str) -> Code:
    """The kernel's own functions in the text of `Lowering.asm()`."""
    bodies = [text for name, text in _FUNCTION.findall(assembly) if not any(part in name for part in _AROUND)]
    return _code("\n".join(bodies), _CPU_LABEL, _cpu_instruction)


def of_gpu(sass: str) -> Code:
    """All that is in the text of `Lowering.sass()`."""
    return _code(sass, _GPU_LABEL, _gpu_instruction)


def _cpu_instruction(line: str) -> tuple[str, str | None] | None:
    if not line or line.startswith((".", "#", "//")):
        return None
    branch = _CPU_BRANCH.match(line)
    return line, branch[1] if branch else None


def _gpu_instruction(line: str) -> tuple[str, str | None] | None:
    match = _GPU_INSTRUCTION.match(line)
    if match is None:
        return None
    target = re.search(r"\.L_[\w.]+", match[3]) if match[2].startswith("BRA") else None
    return match[2] + match[3], target[0] if target else None


def _code(text: str, label: re.Pattern[str], instruction: object) -> Code:
    assert callable(instruction)
    labels: dict[str, int] = {}
    found: list[tuple[str, str | None]] = []
    for line in map(str.strip, text.splitlines()):
        named = label.match(line)
        if named:
            labels[named[1]] = len(found)
        elif (one := instruction(line)) is not None:
            found.append(one)
    targets = {place: labels[target] for place, (_, target) in enumerate(found) if target in labels}
    instructions = tuple(one for one, _ in found)
    loops = tuple(
        (first, place + 1)
        for place, first in targets.items()
        if first <= place and _comes_back(instructions, targets, first, place)
    )
    return Code(instructions, loops)


#: What no instruction behind it follows: on a CPU (a GPU's may have a condition).
_NEVER_FALLS_THROUGH = re.compile(r"^(jmp|retq?|ret|b)(\s|$)")


def _comes_back(instructions: tuple[str, ...], targets: dict[int, int], first: int, last: int) -> bool:
    """Whether a backward branch is reached from its target by what stands between: it may be the end of code that
    was put out of the way, and goes on where all others do."""
    reached = {first}
    for place in range(first, last):
        if place in reached:
            if not _NEVER_FALLS_THROUGH.match(instructions[place]):
                reached.add(place + 1)
            if place in targets:
                reached.add(targets[place])
    return last in reached
