"""The reference of the Python client, from its source: names, signatures and docstrings.

The source is read and not run, so that every Python writes the same.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

# Types that both halves of the client fill in: `InferenceT`.
_PARAMETERS: Final = re.compile(r"\b(Export|Groups|Inference|Inferences|Model|Replay)T\b")
Row: TypeAlias = tuple[str, str]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
SOURCE: Final = Path(__file__).parents[1] / "client" / "src" / "inference_store_client"
# Functions of the filters that a program has no need of.
_INNER: Final = frozenset({"encode_filter", "join_filters", "make_node", "make_operation"})
# Where each class is; of two, one has the members of the other.
_CLASSES: Final[Mapping[str, Sequence[str]]] = {
    "Store": ("methods.py:StoreMethods", "sync.py:Store"),
    "Model": ("methods.py:ModelMethods",),
    "Inferences": ("methods.py:InferencesMethods",),
    "Groups": ("methods.py:GroupsMethods",),
    "DatasetSummary": ("datasets/summary.py:DatasetSummary",),
    "Inference": ("values/inference.py:InferenceFields", "methods.py:InferenceMethods"),
    "Export": ("values/exports.py:ExportFields", "exporting.py:ExportMethods"),
    "Replay": ("values/replays.py:ReplayFields", "replaying.py:ReplayMethods"),
    "Blob": ("blob.py:Blob",),
    "Retries": ("settings.py:Retries",),
    "Question": ("question.py:QuestionOptions",),
}


def list_client(name: str) -> tuple[Row, list[Row]]:
    """Return the head and the rows of a table: of a class of the client, or of a group of names."""
    groups = {"errors": _list_errors, "filters": _list_filters, "values": _list_values}
    if name in groups:
        return ("name", "is"), [*groups[name]()]
    definitions = [definition.split(":") for definition in _CLASSES[name]]
    rows = [row for path, kind in definitions for row in _list_members(_find_class(path, kind))]
    return ("member", "does, or is"), rows


def _list_members(kind: ast.ClassDef) -> Iterator[Row]:
    """Yield the public members of a class: of one that is overloaded, the last."""
    rows: dict[str, Row] = {}
    for statement, after in zip(kind.body, [*kind.body[1:], None], strict=True):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            rows[statement.name] = _describe_function(statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            rows[statement.target.id] = _describe_field(statement, after)
    yield from (row for name, row in rows.items() if not name.startswith("_"))


def _describe_function(function: Function) -> Row:
    if function.returns and any(
        ast.unparse(each) == "property" for each in function.decorator_list
    ):
        return _code(
            function.name
        ), f"{_code(ast.unparse(function.returns))}. {_sentence(function)}"
    return _code(_write_signature(function)), _sentence(function)


def _describe_field(statement: ast.AnnAssign, after: ast.stmt | None) -> Row:
    """Return the type of a field, with the text below it if there is one."""
    hint = _code(ast.unparse(statement.annotation))
    match after:
        case ast.Expr(ast.Constant(str(text))):
            return _code(ast.unparse(statement.target)), f"{hint}. {_join(text)}"
    return _code(ast.unparse(statement.target)), hint


def _write_signature(function: Function) -> str:
    words = ast.unparse(function.args).removeprefix("self").removeprefix(", /").removeprefix(", ")
    result = "" if function.returns is None else f" -> {_write_result(function.returns)}"
    return f"{function.name}({words}){result}"


def _write_result(hint: ast.expr) -> str:
    """Return what a method of `Store` and so on returns: of one that yields, an iterator."""
    text = ast.unparse(hint).replace("AsyncIterator", "Iterator")
    return _PARAMETERS.sub(r"\1", text).strip("'")


def _list_errors() -> Iterator[Row]:
    yield from ((_code(kind.name), _sentence(kind)) for kind in _list_classes(_parse("errors.py")))


def _list_filters() -> Iterator[Row]:
    """Yield the functions that expressions are made with, in order of name."""
    functions = [
        statement
        for statement in _parse("filters.py").body
        if isinstance(statement, ast.FunctionDef) and statement.name not in _INNER
        if not statement.name.startswith("_")
    ]
    for function in sorted(functions, key=lambda function: function.name):
        yield _code(f"{function.name}({_list_names(function.args)})"), _sentence(function)


def _list_names(arguments: ast.arguments) -> str:
    names = [argument.arg for argument in arguments.args]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(names)


def _list_values() -> Iterator[Row]:
    for path in sorted((SOURCE / "values").glob("*.py")):
        for kind in _list_classes(_parse(f"values/{path.name}")):
            yield _code(f"{path.stem}.{kind.name}"), _sentence(kind)


def _find_class(path: str, name: str) -> ast.ClassDef:
    return next(kind for kind in _list_classes(_parse(path)) if kind.name == name)


def _list_classes(module: ast.Module) -> Sequence[ast.ClassDef]:
    return [statement for statement in module.body if isinstance(statement, ast.ClassDef)]


@cache
def _parse(path: str) -> ast.Module:
    return ast.parse((SOURCE / path).read_text())


def _sentence(node: Function | ast.ClassDef) -> str:
    """Return the first paragraph of a docstring in one line."""
    return _join((ast.get_docstring(node) or "").split("\n\n", maxsplit=1)[0])


def _join(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")
