"""`python -m tests.mutations.mutants ROOM` breaks a room at random places, and runs its units.

ROOM is a folder of services/inference_store, such as `query/filters`. A pytest session collects the
tests and notes the lines that each reaches. Each mutant is patched into the functions of a forked
child, which runs the tests that reach its line until one fails. It is sound for units alone: tests
on servers share what a fork cannot copy.
"""

import argparse
import ast
import gc
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

_PACKAGE = Path(__file__).parents[2] / "services" / "inference_store"
_SECONDS = 60.0
"""The time that a child may take: a mutant that loops is seen."""
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
Place = tuple[str, int]


@dataclass(frozen=True)
class Mutant:
    """The edit number `index` of a file."""

    path: str
    index: int
    line: int
    what: str

    def compile(self) -> tuple[CodeType, CodeType]:
        """Return the file's code without the edit, and with it."""
        text = Path(self.path).read_text()
        tree = ast.parse(text)
        for index, (_, _, edit) in enumerate(list_edits(tree)):
            if index == self.index:
                edit()
        return compile(text, self.path, "exec"), compile(
            ast.fix_missing_locations(tree), self.path, "exec"
        )


def list_edits(tree: ast.Module) -> list[tuple[int, str, Callable[[], None]]]:
    """Return each edit inside a function: its line, its kind, and what makes it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, functions)]
    nodes = {id(node): node for body in bodies for part in body for node in _walk(part)}
    return [edit for node in nodes.values() for edit in _list_edits_of(node)]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and all in it, but for messages of errors."""
    if not isinstance(node, ast.Raise):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _list_edits_of(node: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    line = getattr(node, "lineno", 0)

    def set_to(name: str, value: object) -> Callable[[], None]:
        return lambda: setattr(node, name, value)

    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in _COMPARISONS:
            yield line, "comparison", set_to("ops", [_COMPARISONS[type(first)](), *others])
        case ast.BoolOp(op=operator):
            swapped = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield line, "and/or", set_to("op", swapped)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield line, "drop not", set_to("operand", ast.UnaryOp(ast.Not(), operand))
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            yield line, "arithmetic", set_to("op", _OPERATORS[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield line, "boolean", set_to("value", not value)
        case ast.Constant(value=int(value)):
            yield line, "number", set_to("value", value + 1)
        case ast.Return(value=ast.expr()):
            yield line, "return None", set_to("value", ast.Constant(None))
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test.lineno, "negate if", set_to("test", ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield line, "drop call", set_to("value", ast.Constant(None))


def list_mutants(path: str) -> list[Mutant]:
    edits = enumerate(list_edits(ast.parse(Path(path).read_text())))
    return [Mutant(path, index, line, what) for index, (line, what, _) in edits]


def patch(mutant: Mutant) -> None:
    codes = [dict(_list_functions(code)) for code in mutant.compile()]
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == mutant.path:
            key = function.__code__.co_qualname, function.__code__.co_firstlineno
            if codes[0].get(key) != (changed := codes[1].get(key)) and changed is not None:
                function.__code__ = changed


def _list_functions(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _list_functions(constant)


class Session:
    """The plugin: a first run notes which lines each test reaches, then it tries the mutants."""

    def __init__(self, paths: Iterable[Path], number: int, seed: int) -> None:
        self._paths = dict.fromkeys(map(str, paths))
        self._number, self._chance = number, random.Random(seed)
        self._tests: dict[Place, set[str]] = defaultdict(set)
        self._test = ""
        self.failed: list[str] = []
        self.missed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        gc.unfreeze()
        sys.settrace(self._trace)
        result = yield
        sys.settrace(None)
        items = {item.nodeid: item for item in session.items}
        broken, self._test = set(self.failed), ""
        mutants = [mutant for path in self._paths for mutant in list_mutants(path)]
        self._chance.shuffle(mutants)  # the same order, whatever the tests reach
        reached = [mutant for mutant in mutants if (mutant.path, mutant.line) in self._tests]
        chosen = reached[: self._number]
        for mutant in chosen:
            tests = self._tests[mutant.path, mutant.line] - broken
            seen = self._try([items[test] for test in items if test in tests], mutant)
            place = f"{Path(mutant.path).relative_to(_PACKAGE)}:{mutant.line} {mutant.what}"
            print(f"{'seen' if seen else 'NOT SEEN'}: {place}", flush=True)
            if not seen:
                self.missed.append(place)
        print(f"{len(chosen) - len(self.missed)} of {len(chosen)} seen, of {len(reached)} places")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        self._test = item.nodeid
        return (yield)

    def _trace(self, frame: FrameType, *_: object) -> Any:
        if frame.f_code.co_filename not in self._paths:
            return None
        self._tests[frame.f_code.co_filename, frame.f_lineno].add(self._test)
        return self._trace

    def _try(self, items: Sequence[pytest.Item], mutant: Mutant) -> bool:
        """Return whether a child with the mutant fails, or hangs, in one of the tests."""
        if not (child := os.fork()):
            os.setpgid(0, 0)
            self._run_child(items, mutant)
        deadline = time.monotonic() + _SECONDS
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, 9)
                os.waitpid(child, 0)
                return True
            time.sleep(0.02)
        return ended[1] != 0

    def _run_child(self, items: Sequence[pytest.Item], mutant: Mutant) -> None:
        code = 1
        try:
            for item in items[:1]:
                item.config.pluginmanager.unregister(name="terminalreporter")
            self.failed.clear()
            patch(mutant)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    break
            code = 1 if self.failed else 0
        finally:
            os._exit(code)


def main(arguments: Sequence[str]) -> int:
    """Try mutants of a room. The code is that of pytest: the missed ones are printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.mutants")
    parser.add_argument("room")
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", help="default: the units of the room's folder")
    options = parser.parse_args(arguments)
    paths = sorted((_PACKAGE / options.room).rglob("*.py")) or [_PACKAGE / f"{options.room}.py"]
    tests = options.tests or [f"tests/unit/{options.room.partition('/')[0]}"]
    plugin = Session(paths, options.number, options.seed)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[plugin]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
