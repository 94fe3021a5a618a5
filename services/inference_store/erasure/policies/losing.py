"""How many inferences lose something: what previews of policies and dry runs of erasures count.

What legal holds keep does not go, and is counted apart.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, and_, func, not_


def losing_columns(
    lost: ColumnElement[bool],
    held: ColumnElement[bool],
    size: ColumnElement[Any],
    received_at: ColumnElement[Any],
) -> Mapping[str, ColumnElement[Any]]:
    """By name, of the rows that are lost if no hold keeps them; sizes that are NULL are unknown."""
    goes = and_(lost, not_(held))
    return {
        "count": func.count().filter(goes),
        "bytes": func.coalesce(func.sum(size).filter(goes), 0),
        "unknown_sizes": func.count().filter(goes, size.is_(None)),
        "held": func.count().filter(lost, held),
        "oldest": func.min(received_at).filter(goes),
        "newest": func.max(received_at).filter(goes),
    }
