"""`match` on numbers, as the chain of conditions that it is."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from pyschedule.errors import FrontendError
from pyschedule.frontend.folding import fold
from pyschedule.frontend.surface import Branch, Comparison, Element, Logic, Name, Number, SetName, place_of
from pyschedule.ir.nodes import Expr, Location, Stmt
from pyschedule.ir.visitors import Body, walk_expr

if TYPE_CHECKING:
    from pyschedule.frontend.statements import StatementReader

#: A subject of more parts than this, or with an element in it, is held in a local.
_SMALL: Final = 6

_REFUSED: Final[dict[type[ast.pattern], tuple[str, str]]] = {
    ast.MatchSequence: ("a sequence", "one 'match' for each number"),
    ast.MatchMapping: ("a mapping", "numbers"),
    ast.MatchClass: ("a class", "numbers"),
    ast.MatchStar: ("'*'", "numbers"),
    ast.MatchSingleton: ("True, False or None", "an 'if' on the value, or the numbers 0 and 1"),
}


def read_match(reader: StatementReader, node: ast.Match) -> list[Stmt]:
    """match k & 1:                       if k & 1 == 0:
               case 0:                            ...
                   ...             ->         elif k & 1 == 1 and ok:
               case 1 if ok:                      ...
                   ...                        else:
               case _:                            ...
                   ...

    The subject is evaluated once.  Raises `FrontendError` for patterns that are no numbers.
    """
    subject = reader.read(node.subject)
    before: list[Stmt] = []
    parts = list(walk_expr(subject))
    if len(parts) > _SMALL or any(isinstance(part, Element) for part in parts):
        name = reader.fresh("_subject")
        before.append(SetName(name, subject, place_of(subject)))
        subject = Name(name, place_of(subject))
    arms: list[tuple[Expr, Body, Location]] = []
    for case in node.cases:
        test = _test(reader, case.pattern, subject)
        if case.guard is not None:
            guard = reader.read(case.guard)
            test = fold(Logic("and", (test, guard), place_of(guard)))
        arms.append((test, reader.body(case.body), reader.place(case.pattern)))
    chain: Body = ()
    for test, body, place in reversed(arms):
        chain = (Branch(test, body, chain, place),)
    return [*before, *chain]


def _test(reader: StatementReader, pattern: ast.pattern, subject: Expr) -> Expr:
    """Whether a pattern fits."""
    if isinstance(pattern, ast.MatchOr):
        tests: list[Expr] = []
        for item in pattern.patterns:
            test = _test(reader, item, subject)
            if isinstance(test, Number) and test.value:
                return test
            if not isinstance(test, Number):
                tests.append(test)
        if not tests:
            return Number(False, None, reader.place(pattern))
        return tests[0] if len(tests) == 1 else Logic("or", tuple(tests), reader.place(pattern))
    if isinstance(pattern, ast.MatchValue):
        value = reader.read(pattern.value)
        if not isinstance(value, Number):
            raise reader.refusal(
                pattern, "a case must be a constant number", "a number, or an 'if' that compares the two"
            )
        return fold(Comparison("==", subject, value, reader.place(pattern)))
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None:
        return Number(True, None, reader.place(pattern))
    raise _refusal(reader, pattern)


def _refusal(reader: StatementReader, pattern: ast.pattern) -> FrontendError:
    if isinstance(pattern, ast.MatchAs):
        return reader.refusal(
            pattern,
            f"a case cannot bind a name, as '{pattern.name}' would be",
            "'case _:' for whatever is left; a number, or a dotted name, for a constant",
        )
    what, instead = _REFUSED.get(type(pattern), ("such a pattern", "numbers"))
    return reader.refusal(pattern, f"a case cannot be {what} in a kernel", instead)
