"""A Python function → `Parsed`: checked, its names resolved, its positions kept; not yet typed."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pyschedule.frontend.debugging import is_debugging, without_debugging
from pyschedule.frontend.displays import DisplayReader
from pyschedule.frontend.flow import DefiniteAssignment
from pyschedule.frontend.folding import live_branches
from pyschedule.frontend.names import Namespace, number_of
from pyschedule.frontend.scopes import check_array_scopes, distinct_arrays, ranks
from pyschedule.frontend.source import Source, definition_text, read_source
from pyschedule.frontend.statements import LoopName
from pyschedule.frontend.surface import Give, NewArray, SetElement
from pyschedule.ir.nodes import Location
from pyschedule.ir.visitors import Body, walk

__all__ = ["LoopName", "Parsed", "parse"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A kernel's function as the front end understood it, for all call signatures.

    `arrays` are the parameters used as arrays, `scalars` the others (one that is never used, or only
    returned, may still be given an array).  `loops` are the user's loops in source order; `constants` the
    free names that the meaning depends on, with their values (functions by their qualified name), sorted;
    `written` the array parameters that are stored to; `ranks` how many indices the body gives to each; `locals`
    the names of local arrays.
    """

    name: str
    function: FunctionType
    file: str
    loc: Location
    source: str
    params: tuple[str, ...]
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    loops: tuple[LoopName, ...]
    constants: tuple[tuple[str, Any], ...]
    written: tuple[str, ...]
    ranks: tuple[tuple[str, int], ...]
    locals: tuple[str, ...]
    text: Source
    body: Body
    names: frozenset[str]


def parse(function: Any) -> Parsed:
    """Reads a function; raises `FrontendError`, with the place, the line and the remedy, for everything that
    a kernel cannot say."""
    plain, source, definition = read_source(function)
    params = _parameters(source, definition, plain)
    if inspect.isgeneratorfunction(plain):
        raise _generator_refusal(source, definition)
    nodes = definition.body
    if (
        isinstance(nodes[0], ast.Expr)
        and isinstance(nodes[0].value, ast.Constant)
        and isinstance(nodes[0].value.value, str)
    ):
        nodes = nodes[1:]
    if is_debugging():
        nodes = without_debugging(nodes)
    namespace = Namespace(plain)
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)} | set(params)
    reader = DisplayReader(source, namespace, params, set(names))
    _find_arrays(reader, nodes)
    body = live_branches(reader.body(nodes))
    _check(source, body, reader, params)
    known_ranks = ranks(source, body)
    body = distinct_arrays(body, reader.fresh)
    arrays = tuple(name for name in params if name in reader.arrays)
    stored = {stmt.array for stmt in walk(body) if isinstance(stmt, SetElement)}
    return Parsed(
        name=plain.__name__,
        function=plain,
        file=source.file,
        loc=source.place(definition),
        source=definition_text(source, definition),
        params=params,
        arrays=arrays,
        scalars=tuple(name for name in params if name not in reader.arrays),
        loops=tuple(reader.loops),
        constants=tuple(sorted(namespace.used.items())),
        written=tuple(name for name in arrays if name in stored),
        ranks=tuple((name, known_ranks[name]) for name in arrays if name in known_ranks),
        locals=tuple(dict.fromkeys(stmt.name for stmt in walk(body) if isinstance(stmt, NewArray))),
        text=source,
        body=body,
        names=frozenset(reader.taken),
    )


def _parameters(source: Source, definition: ast.FunctionDef, function: FunctionType) -> tuple[str, ...]:
    args = definition.args
    for extra, mark in ((args.vararg, "*"), (args.kwarg, "**")):
        if extra is not None:
            raise source.refusal(
                source.place(extra), f"a kernel cannot take '{mark}{extra.arg}'", "a name for each argument"
            )
    for default in [*args.defaults, *(item for item in args.kw_defaults if item is not None)]:
        if isinstance(default, ast.Constant) and number_of(default.value) is None:
            raise source.refusal(source.place(default), "a default that is no number", "a number, or no default")
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in defaults:
        if number_of(value) is None:
            raise source.refusal(
                source.place(definition.args.defaults[0] if args.defaults else definition),
                f"the default {value!r} is no number",
                "a number, or no default",
            )
    return tuple(arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))


def _generator_refusal(source: Source, definition: ast.FunctionDef) -> Exception:
    for node in ast.walk(definition):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return source.refusal(source.place(node), "a kernel cannot use 'yield'", "a store into an output array")
    return source.refusal(source.place(definition), "a kernel cannot be a generator", "a plain function")


def _own_nodes(nodes: list[ast.stmt]) -> list[ast.AST]:
    return [node for stmt in nodes for node in ast.walk(stmt)]


def _find_arrays(reader: DisplayReader, nodes: list[ast.stmt]) -> None:
    """Finds what the function binds, and which of it are arrays or whole shapes, before anything is read."""
    own = _own_nodes(nodes)
    comprehended = {
        id(part)
        for node in own
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        for generator in node.generators
        for part in ast.walk(generator.target)
    }
    stores = Counter(
        node.id
        for node in own
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in comprehended
    )
    reader.locals |= set(stores)
    assigns = [
        (node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value)
        for node in own
        if (isinstance(node, ast.Assign) and len(node.targets) == 1) or isinstance(node, ast.AnnAssign)
    ]
    for target, value in assigns:
        if isinstance(target, ast.Name) and value is not None and reader.makes_array(value):
            if target.id in reader.params:
                raise reader.refusal(target, f"the parameter '{target.id}' is bound to a new array", "another name")
            reader.made.add(target.id)
    reader.arrays |= reader.made
    for node in own:
        used: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            used = node
            while isinstance(used, ast.Subscript):
                used = used.value
        elif isinstance(node, ast.Attribute):
            used = node.value
        elif isinstance(node, ast.Call) and node.args:
            function = reader.callee(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
            if function is not None and (function.kind == "len" or function.name.endswith("_like")):
                used = node.args[0]
        if isinstance(used, ast.Name) and used.id in reader.params:
            reader.arrays.add(used.id)
    for target, value in assigns:
        if isinstance(target, ast.Name) and value is not None and isinstance(value, ast.Attribute):
            array = reader.shape_of(value)
            if array is not None:
                if stores[target.id] > 1 or target.id in reader.params:
                    raise reader.refusal(target, f"'{target.id}' is a shape and something else", "two names")
                reader.shapes[target.id] = array


def _check(source: Source, body: Body, reader: DisplayReader, params: tuple[str, ...]) -> None:
    check_array_scopes(source, body)
    gives = [stmt for stmt in walk(body) if isinstance(stmt, Give)]
    falls_through = DefiniteAssignment(source, reader.made).check(body, params)
    for give in gives:
        if len(give.values) != len(gives[0].values):
            raise source.refusal(
                give.loc,
                f"this returns {len(give.values)} values, line {gives[0].loc and gives[0].loc.line} "
                f"{len(gives[0].values)}",
                "the same number of results everywhere",
            )
    if gives and gives[0].values and falls_through:
        raise source.refusal(
            gives[0].loc,
            "this returns a value, but the end of the function is reached without one",
            "a 'return' of a value at the end as well",
        )
