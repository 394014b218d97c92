"""Figures about the code's shape: sizes, circles of imports, where names of ops stand, repeats.

Run as `make style-report`; it prints a table, to be compared with the one of another revision:
`python -m tools.style_report --root DIR`. It parses files and runs nothing of them.
"""

import argparse
import ast
import io
import re
import statistics
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

Edges = dict[str, set[str]]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_VOCABULARIES = (
    *("interop/", "array_api/", "backends/openvino/", "backends/cuda/libraries/"),
    *("traced_module/", "jit/ops_table.py", "tools/", "utils/"),  # MegEngine's
    *("backends/codegen/kernel/", "backends/codegen/scalars/"),  # instructions of scalar code
    *("functional/", "tensor.py", "module/", "llm/models/gates.py"),  # functions of users
    "cli/run/values.py",  # operations on numbers
    "conformance/",  # tests
)
"""Where the same words name something else, or what other projects call an op."""
_PATTERNS = ("P", "Filled")
"""What rewrite rules are written in: they compose ops, as functions do."""
_PROJECT = Path(__file__).parent.parent / "pyproject.toml"
_REPEAT = 8
"""So many equal lines in two places are a repeat."""


@dataclass
class Module:
    """A source file, parsed; names of modules are those that imports use."""

    name: str
    path: str
    text: str
    package: bool
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)

    @cached_property
    def functions(self) -> list[int]:
        """Lines of every function, its docstring left out."""
        return [_lines(n) for n in ast.walk(self.tree) if isinstance(n, _Function)]

    @cached_property
    def docstrings(self) -> list[str]:
        """All docstrings."""
        kinds = ast.Module, ast.ClassDef, *_Function.__args__
        found = (ast.get_docstring(n) for n in ast.walk(self.tree) if isinstance(n, kinds))
        return [text for text in found if text]


def _lines(node: _Function) -> int:
    first, *rest = node.body
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and rest
    docstring = (first.end_lineno or 0) - first.lineno + 1 if told else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def modules(root: Path) -> dict[str, Module]:
    """Every module of the package below `root`, by name."""
    found = {}
    source = root / "src"
    for path in sorted((source / "treadle").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        place = path.relative_to(source / "treadle").as_posix()
        found[name] = Module(name, place, path.read_text(encoding="utf-8"), package)
    return found


# -- imports -----------------------------------------------------------------------------------


def edges(known: dict[str, Module], *, late: bool) -> Edges:
    """Which module imports which; `late`: inside of functions and by name, too."""
    return {m.name: set(_imported(m, known, late)) - {m.name} for m in known.values()}


def _imported(module: Module, known: dict[str, Module], late: bool) -> Iterator[str]:
    by_name, handed_on = late and "import_module(" in module.text, set[int]()
    for node in _running(module.tree, late, by_name):
        if isinstance(node, ast.Call) and not ast.unparse(node.func).endswith("import_module"):
            handed_on.update(map(id, node.args))
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                # A name out of a package: its `__init__` runs in any case, and is no edge then.
                yield from ([whole] if whole in known else [node.module] * (node.module in known))
        elif by_name and isinstance(node, ast.Constant) and id(node) not in handed_on:
            yield from [str(node.value)] * (node.value in known)


def _running(tree: ast.Module, inside: bool, expressions: bool) -> Iterator[ast.AST]:
    """All nodes that run at import, or at all; not what is for type checkers only.

    Nodes come before those inside of them. Without `expressions` only statements are visited, a
    tenth of all.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.expr) and not expressions:
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            if inside or not isinstance(child, _Function | ast.Lambda):
                waiting.append(child)


def circles(graph: Edges) -> list[list[str]]:
    """Groups of modules that reach one another, largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(start: str) -> None:
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted((c for c in found if len(c) > 1), key=len, reverse=True)


@cache
def _ranks() -> dict[str, int]:
    """The height of every layer, by the contract on layers."""
    contracts = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [c["layers"] for c in contracts["contracts"] if c["id"] == "layers"]
    return {n: -i for i, names in enumerate(layers) for n in re.findall(r"\w+", names)}


def upward(graph: Edges) -> list[tuple[str, str]]:
    """Imports from a layer into a higher one, by the contract on layers."""
    rank = _ranks()
    found = []
    for name, others in sorted(graph.items()):
        for other in sorted(others):
            low, high = (rank.get(n.split(".")[1]) if "." in n else None for n in (name, other))
            if low is not None and high is not None and high > low:
                found.append((name, other))
    return found


# -- ops ---------------------------------------------------------------------------------------


def ops(known: dict[str, Module]) -> dict[str, str]:
    """Classes of ops by name: what is declared with `@op` below `ops`."""
    found = {}
    for module in known.values():
        if not module.path.startswith("ops/"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and "op" in map(ast.unparse, node.decorator_list):
                for line in node.body:
                    if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "name":
                        found[node.name] = ast.literal_eval(line.value)
    return found


@dataclass(frozen=True, order=True)
class OpList:
    """A collection of names or classes of ops, written out by hand.

    `binds` says that it is a table of rules: it gives code to the ops that it names, be it a
    function for each, or one for all. Any other list says something of its ops.
    """

    path: str
    line: int
    ops: tuple[str, ...]
    binds: bool = False


def op_lists(known: dict[str, Module]) -> list[OpList]:
    """Collections of three or more ops outside of `ops` and of tables of other vocabularies."""
    classes = ops(known)
    names = set(classes.values())
    found = []
    for module in filter(_speaks_of_ops, known.values()):
        own, rules = _imported_ops(module, classes), _binding(module, known)
        for node, parts in _collections(module.tree):
            said = [_op_of(p, own, names) for p in parts]
            told = tuple(s for s in said if s)
            if len(told) >= 3 and len(told) * 2 > len(said):
                found.append(OpList(module.path, node.lineno, told, id(node) in rules))
    return sorted(found)


def _speaks_of_ops(module: Module) -> bool:
    """Whether the names of ops mean ops in a module: it lies above them, and has no other words."""
    rank, (layer, *_) = _ranks(), module.name.split(".")[1:] or ["treadle"]
    is_below = layer in rank and rank[layer] <= rank["ops"]
    return not is_below and not module.path.startswith(_VOCABULARIES)


def _collections(tree: ast.Module) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    inner = set[int]()  # A | B inside of A | B | C
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            yield node, list(node.elts)
        elif isinstance(node, ast.Dict):
            yield node, [k for k in node.keys if k is not None]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            inner.add(id(node.left))
            if id(node) not in inner:
                yield node, _united(node)


def _binding(module: Module, known: dict[str, Module]) -> set[int]:
    """Collections that give code to what they name.

    They are dictionaries of functions, and what stands in a decorator, or in a call beside
    functions.
    """
    found = set[int]()
    functions = _functions(module, known)
    for node in ast.walk(module.tree):
        if isinstance(node, _Function):
            for decorator in node.decorator_list:
                found.update(map(id, ast.walk(decorator)))
        elif isinstance(node, ast.Dict):
            if all(ast.unparse(v) in functions for v in node.values):
                found.add(id(node))
        elif isinstance(node, ast.Call) and any(ast.unparse(a) in functions for a in node.args):
            found.update(map(id, node.args))
    return found


def _functions(module: Module, known: dict[str, Module]) -> set[str]:
    """Functions by the names that a module has for them: its own, methods, those it imports."""
    found = {n for name in _defined(module) for n in (name, f"self.{name}")}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name, whole = alias.asname or alias.name, f"{node.module}.{alias.name}"
                if whole in known:
                    found |= {f"{name}.{n}" for n in _defined(known[whole])}
                elif node.module in known and alias.name in _defined(known[node.module]):
                    found.add(name)
    return found


def _defined(module: Module) -> set[str]:
    return {n.name for n in ast.walk(module.tree) if isinstance(n, _Function)}


def _united(node: ast.expr) -> list[ast.expr]:
    """The parts of A | B | C."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_united(node.left), *_united(node.right)]
    return [node]


def _op_of(part: ast.expr, classes: dict[str, str], names: set[str]) -> str:
    if isinstance(part, ast.Constant) and part.value in names:
        return str(part.value)
    return classes.get(ast.unparse(part), "")


def _imported_ops(module: Module, classes: dict[str, str]) -> dict[str, str]:
    """Ops by what the module calls their classes: `Add`, `elementwise.Add`."""
    found = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("treadle.ops"):
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name in classes:
                    found[name] = classes[alias.name]
                else:
                    found |= {f"{name}.{c}": op for c, op in classes.items()}
    return found


def files_per_op(known: dict[str, Module]) -> dict[str, int]:
    """In how many files outside of `ops` and other vocabularies each op stands.

    Its class is asked for there or its name compared with something, or it stands in a list of ops.
    Applying an op, or writing a pattern of ops, is composing and does not count.
    """
    classes = ops(known)
    names = set(classes.values())
    counts: Counter[str] = Counter()
    lists: dict[str, set[str]] = defaultdict(set)
    for found in op_lists(known):
        lists[found.path].update(found.ops)
    for module in filter(_speaks_of_ops, known.values()):
        counts.update(_named(module, classes, names) | lists[module.path])
    return {name: counts[name] for name in names}


def _named(module: Module, classes: dict[str, str], names: set[str]) -> set[str]:
    own = _imported_ops(module, classes)
    found, composed = set[str](), set[int]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            composed.add(id(node.func))
            if ast.unparse(node.func) in _PATTERNS:
                composed.update(map(id, node.args))
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            composed.update(map(id, ast.walk(node.annotation)))
        elif isinstance(node, _Function) and node.returns is not None:
            composed.update(map(id, ast.walk(node.returns)))
        elif isinstance(node, ast.Compare):
            parts = (node.left, *node.comparators)
            if any(ast.unparse(p).endswith(".name") for p in parts):
                found.update({getattr(p, "value", "") for p in parts} & names)
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in composed:
            found.update({own.get(ast.unparse(node), "")} - {""})
    return found


# -- text --------------------------------------------------------------------------------------


def repeats(known: Iterable[Module]) -> int:
    """Places of eight equal lines of code; one that goes on counts once."""
    at: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for module in known:
        kept = [
            (i, s) for i, s in enumerate(map(str.strip, module.text.splitlines())) if len(s) > 3
        ]
        kept = [(i, s) for i, s in kept if not s.startswith(("import ", "from ", "#", '"'))]
        for first in range(len(kept) - _REPEAT + 1):
            part = kept[first : first + _REPEAT]
            at[hash(tuple(s for _, s in part))].append((module.name, first))
    places = {p for same in at.values() if len(same) > 1 for p in same}
    return sum((name, first - 1) not in places for name, first in places)


def comments(text: str) -> int:
    """Lines that hold nothing but a comment."""
    made = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and t.line.lstrip().startswith("#") for t in made)


def _spread(numbers: list[int]) -> str:
    numbers = sorted(numbers)
    return f"{statistics.median(numbers):.0f} / {numbers[len(numbers) * 9 // 10]} / {numbers[-1]}"


def _placed(lists: list[OpList]) -> str:
    return f"{len(lists)} in {len({found.path for found in lists})} files"


def report(known: dict[str, Module]) -> dict[str, str]:
    """The figures, by what they are called in the table."""
    every = list(known.values())
    lengths = [n for m in every for n in m.functions]
    lines = [len(m.text.splitlines()) for m in every]
    openings = Counter(
        word for m in every for d in m.docstrings if (word := re.split(r"\W", d, maxsplit=1)[0])
    )
    early, late = edges(known, late=False), edges(known, late=True)
    largest = [max(map(len, circles(g)), default=1) for g in (early, late)]
    by_name = sum(m.text.count("import_module(") for m in every)
    per_op = sorted(files_per_op(known).values())
    lists, tables = ([x for x in op_lists(known) if x.binds is binds] for binds in (False, True))
    caches = sum(len(re.findall(r"@(?:functools\.)?(?:lru_)?cache\b", m.text)) for m in every)
    told = ", ".join(f"{openings[w]} {w}" for w in ("What", "Whether", "How"))
    return {
        "files": str(len(every)),
        "lines": f"{sum(lines):,}",
        "lines of a file: median / 9 of 10 / most": _spread(lines),
        "lines of a function: median / 9 of 10 / most": _spread(lengths),
        "lines of comments": f"{sum(comments(m.text) for m in every):,}",
        "modules in the largest circle: imports / late ones too": " / ".join(map(str, largest)),
        "upward imports, late ones too": str(len(upward(late))),
        "calls of import_module": str(by_name),
        "lists of three or more ops outside of ops": _placed(lists),
        "tables that give code to three or more ops": _placed(tables),
        "files that name an op, beside its own: median / 9 of 10 / most": _spread(per_op),
        f"places that repeat {_REPEAT} lines": str(repeats(every)),
        "functions with a cache for the whole process": str(caches),
        "docstrings that begin with": told,
    }


def main() -> None:
    """Print the figures, or one of the lists behind them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--list", choices=("ops", "circles", "upward"), help="print these instead")
    given = parser.parse_args()
    known = modules(given.root)
    if given.list == "ops":
        for found in op_lists(known):
            kind = "rules for " if found.binds else ""
            print(f"{found.path}:{found.line}: {kind}{', '.join(found.ops)}")
    elif given.list == "circles":
        for circle in circles(edges(known, late=True)):
            print(len(circle), *circle)
    elif given.list == "upward":
        for name, other in upward(edges(known, late=True)):
            print(name, "->", other)
    else:
        figures = report(known)
        width = max(map(len, figures))
        print("\n".join(f"| {name:<{width}} | {value} |" for name, value in figures.items()))


if __name__ == "__main__":
    main()
