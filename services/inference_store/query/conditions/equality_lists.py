"""Merges equalities of one value that are joined by OR into one comparison with a list."""

from collections.abc import Iterable

from inference_store.query.filters.typed import Among, Compared, Constant, Or, Predicate, Value


def merge_equalities(parts: Iterable[Predicate]) -> list[Predicate]:
    """Return the disjunction with as few parts as possible; nested ones are flattened."""
    # by its spelling: equal numbers that are written with different digits are different values
    lists: dict[str, tuple[Value, list[Constant]]] = {}
    others: list[Predicate] = []
    for part in _flatten(parts):
        match part:
            case Compared("=", of, Constant() as item) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Compared("=", Constant() as item, of) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Among(of, items):
                lists.setdefault(repr(of), (of, []))[1].extend(items)
            case _:
                others.append(part)
    return [*(_merge_items(of, items) for of, items in lists.values()), *others]


def _merge_items(of: Value, items: list[Constant]) -> Predicate:
    return Compared("=", of, items[0]) if len(items) == 1 else Among(of, tuple(items))


def _flatten(parts: Iterable[Predicate]) -> Iterable[Predicate]:
    for part in parts:
        if isinstance(part, Or):
            yield from _flatten(part.parts)
        else:
            yield part
