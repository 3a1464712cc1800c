"""A kernel as one networkx graph: its loops, what they contain, and the dependences between statements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from pyschedule.errors import Unsupported
from pyschedule.ir.algebra import trip_count
from pyschedule.ir.nodes import Assign, For, Kernel, Stmt, Store, While
from pyschedule.ir.printer import headline
from pyschedule.ir.visitors import Body, bodies

if TYPE_CHECKING:
    import networkx


class Dependence(Protocol):
    """What the graph needs of a dependence: which statements (the nodes themselves, or the numbers of their
    `Origin`s), through which array or scalar, and how many iterations apart, a loop each."""

    @property
    def source(self) -> Stmt | int: ...
    @property
    def target(self) -> Stmt | int: ...
    @property
    def array(self) -> str: ...
    @property
    def distance(self) -> Any: ...


def loop_graph(kernel: Kernel, edges: Iterable[Dependence] = ()) -> networkx.DiGraph[Any]:
    """The kernel's loops and leaf statements, numbered from 1 in textual order; node 0 is the kernel.

    Node attributes: `kind` (`"kernel"`, `"loop"` or `"statement"`), `label` (a loop's name, a statement's
    text), `loc`, `node` (the IR); of a loop `trip_count` (in sympy; `None` where it has no closed form); of a
    statement `statement`, its number in the source kernel.

    Edges of `kind="contains"` go from a loop to what is directly in it (branches are looked through); those of
    `kind="dependence"`, one a pair of statements, list their `dependences` as (array, distance), the first of
    these also as `array` and `distance`.  Raises `ValueError` for a dependence of a statement that is not
    there.
    """
    import networkx  # heavy, and needed by few

    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    graph.add_node(0, kind="kernel", label=kernel.name, loc=kernel.loc, node=kernel)
    _add(graph, 0, kernel.body)
    for edge in edges:
        found = (edge.array, edge.distance)
        for source in _nodes(graph, edge.source):
            for target in _nodes(graph, edge.target):
                if graph.has_edge(source, target):
                    graph.edges[source, target]["dependences"] += (found,)
                else:
                    graph.add_edge(
                        source,
                        target,
                        kind="dependence",
                        array=edge.array,
                        distance=edge.distance,
                        dependences=(found,),
                    )
    return graph


def _add(graph: networkx.DiGraph[Any], parent: int, body: Body) -> None:
    for stmt in body:
        inside = parent
        if isinstance(stmt, (For, While)) or not any(True for _ in bodies(stmt)):
            inside = len(graph)
            graph.add_node(inside, loc=getattr(stmt, "loc", None), node=stmt, **_attributes(stmt))
            graph.add_edge(parent, inside, kind="contains")
        for inner in bodies(stmt):
            _add(graph, inside, inner)


def _attributes(stmt: Stmt) -> dict[str, Any]:
    match stmt:
        case For():
            try:
                count = trip_count(stmt)
            except Unsupported:
                count = None
            return {"kind": "loop", "label": stmt.label or stmt.var, "trip_count": count}
        case While():
            return {"kind": "loop", "label": stmt.source or headline(stmt), "trip_count": None}
        case Assign() | Store() if stmt.origin is not None:
            return {"kind": "statement", "label": headline(stmt), "statement": stmt.origin.statement}
    return {"kind": "statement", "label": headline(stmt), "statement": None}


def _nodes(graph: networkx.DiGraph[Any], end: Stmt | int) -> list[int]:
    """The nodes of a statement: one for the IR's own node, perhaps several copies for a source number."""
    found = [
        number
        for number, data in graph.nodes(data=True)
        if (data.get("statement") == end if isinstance(end, int) else data["node"] is end)
    ]
    if not found:
        raise ValueError(f"the kernel has no statement {end if isinstance(end, int) else headline(end)!r}")
    return found
