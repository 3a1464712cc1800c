"""What lies outside of a kernel's Python: each refused with place, line, caret and remedy."""

from __future__ import annotations

import functools
import linecache
import re

import numpy as np
import pytest

from pyschedule.errors import FrontendError, ScheduleError
from pyschedule.frontend.parser import parse

#: (body of `def f(A, n):`, the text under the caret, part of the message)
REFUSED = [
    ("with n: pass", "with n", "'with'"),
    ("try:\n    n = 1\nexcept Exception: pass", "try:", "'try'"),
    ("raise ValueError", "raise ValueError", "'raise'"),
    ("assert n", "assert n", "'assert'"),
    ("del n", "del n", "'del'"),
    ("import math", "import math", "'import'"),
    ("from math import pi", "from math import pi", "'import'"),
    ("global G", "global G", "'global'"),
    ("def g(): pass", "def g()", "a function inside"),
    ("class G: pass", "class G", "a class"),
    ("match n:\n    case m: pass", "m", "a case cannot bind a name, as 'm' would be"),
    ("match n:\n    case 1 as m: pass", "1 as m", "a case cannot bind a name"),
    ("match n:\n    case [1, 2]: pass", "[1, 2]", "a case cannot be a sequence"),
    ("match n:\n    case {1: 2}: pass", "{1: 2}", "a case cannot be a mapping"),
    ("match n:\n    case int(): pass", "int()", "a case cannot be a class"),
    ("match n:\n    case True: pass", "True", "True, False or None"),
    ("match n:\n    case 'a': pass", "'a'", "a string"),
    ("match n, n:\n    case 1: pass", "n, n", "a tuple here"),
    ("s = 2**70", "2**70", "does not fit 64 bits"),
    ("g = lambda: 1", "lambda: 1", "a lambda"),
    ("yield n", "yield n", "'yield'"),
    ("s = 'text'", "'text'", "a string"),
    ("s = f'{n}'", "f'{n}'", "a string"),
    ("s = None", "None", "None"),
    ("s = 1j", "1j", "a complex number"),
    ("s = {1: 2}", "{1: 2}", "a dictionary"),
    ("s = {1, 2}", "{1, 2}", "a set"),
    ("s = (1, 2)", "(1, 2)", "a tuple here"),
    ("s = sum(A[i] for i in range(3))", "sum(A[i] for i in range(3))", "cannot call 'sum'"),
    ("s = n + [0.0 for _ in range(3)]", "[0.0 for _ in range(3)]", "a list comprehension here"),
    ("s = []", "[]", "an empty list"),
    ("s = [[0.0] * 3] * 2", "[[0.0] * 3] * 2", "one and the same row"),
    ("s = [[1, 2], [3]]", "[[1, 2], [3]]", "rows of different lengths"),
    ("s = [0.0 for _ in range(3) if n]", "[0.0 for _ in range(3) if n]", "counts with one 'range(n)'"),
    ("s = [0.0, 1.0] * 3", "[0.0, 1.0] * 3", "only a list of one number"),
    ("s = [0.0] * 3\ns.append(1.0)", "s.append(1.0)", "the method '.append()'"),
    ("if (m := n) > 0: pass", "m := n", "':='"),
    ("A[:] = 0", "A[:]", "slices"),
    ("A[1:3] = 0", "A[1:3]", "slices"),
    ("s = A[None]", "A[None]", "'None' or '...'"),
    ("s = A[...]", "A[...]", "'None' or '...'"),
    ("s = A[1.5]", "A[1.5]", "1.5 is not an integer"),
    ("s = A @ A", "A @ A", "'@'"),
    ("A @= A", "A @= A", "'@='"),
    ("A += 1\nA[0] = 1", "A += 1", "whole array 'A'"),
    ("s = A + 1\nA[0] = 1", "A", "whole array 'A'"),
    ("s = A.T\nA[0] = 1", "A.T", "'.T'"),
    ("s = A.sum()", "A.sum()", "the method '.sum()'"),
    ("s = A.shape\nt = s", "s", "whole shape 's'"),
    ("s = A.shape + 1", "A.shape", "a whole shape"),
    ("A.shape[0] = 3", "A.shape[0]", "a shape cannot be changed"),
    ("s = A.shape[n]", "A.shape[n]", "not a constant integer"),
    ("A[0] = 1\nA[0, 1] = 2", "A[0, 1] = 2", "2 indices here and 1 elsewhere"),
    ("M, N = A.shape\nA[0] = M", "A[0] = M", "1 index here and 2 elsewhere"),
    ("A = n\nA[0] = 1", "A", "cannot be bound"),
    ("A = np.zeros(3)", "A", "parameter 'A'"),
    ("A[0] = 1\nB = A", "A", "whole array 'A'"),
    ("b = np.zeros(3)\nb = 1", "b = 1", "cannot be bound"),
    ("b = np.zeros(3)\nb = np.ones(3)", "b = np.ones(3)", "a second time"),
    ("if n:\n    b = np.zeros(3)\ns = b[0]", "b[0]", "outside of the block"),
    ("s = b[0]\nb = np.zeros(3)", "b[0]", "outside of the block"),
    ("b = np.zeros(3, 'text')", "'text'", "no dtype"),
    ("b = np.zeros(3, order='F')", "np.zeros(3, order='F')", "takes shape, dtype"),
    ("b = np.zeros(-1)", "-1", "no size"),
    ("s = np.zeros(3) + 1", "np.zeros(3)", "new array is used as a value"),
    ("s = np.linspace(0, 1)", "np.linspace(0, 1)", "cannot call 'np.linspace'"),
    ("s = np.nonsense", "np.nonsense", "no 'nonsense'"),
    ("print(n)", "print(n)", "cannot call 'print'"),
    ("s = helper(n)", "helper(n)", "cannot call 'helper'"),
    ("s = n(1)", "n(1)", "cannot call 'n'"),
    ("s = max(n)", "max(n)", "'max' of one argument"),
    ("s = max(n, 1, key=abs)", "max(n, 1, key=abs)", "no keywords"),
    ("s = max(*A)", "max(*A)", "'*'"),
    ("s = math.sqrt(n, 1)", "math.sqrt(n, 1)", "takes 1 argument"),
    ("s = math.gcd(n, 4)", "math.gcd(n, 4)", "cannot call 'math.gcd'"),
    ("s = range(3)", "range(3)", "outside a 'for'"),
    ("s = math", "math", "the module 'math'"),
    ("s = abs", "abs", "the function 'abs'"),
    ("s = TABLE", "TABLE", "the array 'TABLE'"),
    ("s = TABLE[0]", "TABLE", "the array 'TABLE'"),
    ("s = NAME", "NAME", "the str 'NAME'"),
    ("s = unknown", "unknown", "'unknown' is not known"),
    ("s = float('text')", "float('text')", "no number"),
    ("for i in range(3): pass\nelse: n = 1", "n = 1", "cannot have 'else'"),
    ("while n > 0: n -= 1\nelse: n = 1", "n = 1", "cannot have 'else'"),
    ("for i in A: pass\nA[0] = 1", "A", "the array 'A' itself"),
    ("for i in [1, 2]: pass", "[1, 2]", "over 'range' only"),
    ("for i in enumerate(A): pass", "enumerate(A)", "over 'range' only"),
    ("for i in reversed(range(3)): pass", "reversed(range(3))", "over 'range' only"),
    ("for i, j in range(3): pass", "i, j", "counts with one name"),
    ("for i in range(0, 3, 0): pass", "range(0, 3, 0)", "step of 'range' is zero"),
    ("for i in range(2.5): pass", "2.5", "'range' of the float"),
    ("for i in range(): pass", "range()", "one to three"),
    ("s = n is None", "n is None", "'is'"),
    ("s = n is n", "n is n", "'is'"),
    ("s = n in A", "n in A", "'in'"),
    ("a, b = 1, 2, 3", "a, b = 1, 2, 3", "2 names are given 3 values"),
    ("a, *b = 1, 2", "*b", "'*'"),
    ("a, b = n", "a, b = n", "only a shape"),
    ("n.x = 1", None, None),
    ("n + 1", "n + 1", "not used"),
    ("'text'\n'more'", "'more'", "not used"),
    ("s = 1 // 0", "1 // 0", "cannot be computed"),
    ("s = 10 ** 30", "10 ** 30", "64 bits"),
    ("if n: s = 1\nA[0] = s", "s", "'s' may be read before"),
    ("for i in range(n): s = i\nA[0] = s", "s", "'s' may be read before"),
    ("for i in range(n): A[i] = 1\nA[0] = i", "i", "'i' may be read before"),
    ("A[0] = s\ns = 1", "s", "'s' may be read before"),
    ("s += 1", "s += 1", "'s' may be read before"),
    ("if n: return 1", "return 1", "reached without one"),
    ("if n: return 1\nreturn", "return", "0 values"),
    ("if n: return 1, 2\nreturn 1", "return 1", "1 values"),
    ("return [1, 2]", "[1, 2]", "a list here"),
]
TABLE = np.arange(3)
NAME = "text"


def helper(x):
    return x


def define(source: str):
    """The function `f` of some source text that `inspect` can find."""
    import math

    name = f"<refused {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"np": np, "math": math, "TABLE": TABLE, "NAME": NAME, "helper": helper, "functools": functools}
    exec(compile(source, name, "exec"), space)
    return space["f"]


def refused(source: str) -> str:
    with pytest.raises(FrontendError) as caught:
        parse(define(source))
    return str(caught.value)


@pytest.mark.parametrize(("body", "text", "says"), REFUSED, ids=[entry[0].replace("\n", "; ") for entry in REFUSED])
def test_a_refusal_shows_place_line_caret_and_remedy(body: str, text: str | None, says: str | None) -> None:
    lines = ["def f(A, n):", *(f"    {line}" for line in body.splitlines())]
    message = refused("\n".join(lines) + "\n")
    head, *rest = message.splitlines()
    place = re.match(r"<refused \d+>:(\d+):(\d+): (.*)", head)
    assert place is not None, message
    line, column = int(place[1]), int(place[2])
    assert rest[0] == "    " + lines[line - 1]
    assert rest[1].index("^") == column - 1 + 4
    assert rest[2].startswith("  instead: ") and len(rest[2]) > 15
    if text is not None:
        caret = rest[1]
        assert rest[0][caret.index("^") : caret.rindex("^") + 1] == text, message
    if says is not None:
        assert says in place[3]
    assert isinstance(FrontendError(""), ScheduleError)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(*A): pass", "'*A'"),
        ("def f(**A): pass", "'**A'"),
        ("def f(A, n=None): pass", "default"),
        ("def f(A, n='x'): pass", "default"),
        ("async def f(A): pass", "'async'"),
        ("f = lambda A: 1", "a lambda"),
        ("def f(n):\n    x = 1\n    return x if n else (yield)", "'yield'"),
    ],
)
def test_a_function_of_another_kind_is_refused(source: str, says: str) -> None:
    assert says in refused(source)


def test_a_nonlocal_is_refused() -> None:
    count = 0

    def f(A):
        nonlocal count
        A[0] = count

    with pytest.raises(FrontendError, match="'nonlocal'"):
        parse(f)


def test_a_function_without_text_is_refused() -> None:
    space: dict = {}
    exec("def f(A): pass", space)
    with pytest.raises(FrontendError, match="source of 'f' cannot be read"):
        parse(space["f"])


def test_a_callable_that_is_no_function_is_refused() -> None:
    with pytest.raises(FrontendError, match="not a Python function"):
        parse(np.sin)


def test_a_name_bound_later_is_not_known_yet() -> None:
    def f(A):
        A[0] = later

    with pytest.raises(FrontendError, match="'later' is not known"):
        parse(f)
    later = 3
    assert dict(parse(f).constants) == {"later": 3}


def test_results_that_change_while_it_runs_are_refused() -> None:
    from tests.frontend.execution import built

    def f(x):
        n = x[0]
        C = np.zeros(n)
        C[0] = 1
        return C

    with pytest.raises(FrontendError, match="extents of the result 'C' change"):
        built(f, np.zeros(3, np.int64))


def test_a_caret_counts_characters() -> None:
    message = refused("def f(A, n):\n    A[0] = 1 if n else 'ü' + unknown\n")
    line, caret = message.splitlines()[1:3]
    assert line[caret.index("^") : caret.rindex("^") + 1] == "'ü'"
