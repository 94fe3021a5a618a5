"""The counts of inferences that lose something, for previews of policies and dry runs of erasures.

What legal holds protect does not go, and is counted separately.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, and_, func, not_


def build_loss_columns(
    lost: ColumnElement[bool],
    held: ColumnElement[bool],
    size: ColumnElement[Any],
    received_at: ColumnElement[Any],
) -> Mapping[str, ColumnElement[Any]]:
    """Return aggregates by name, over the rows that are lost unless a hold protects them.

    A size that is NULL is unknown.
    """
    goes = and_(lost, not_(held))
    return {
        "count": func.count().filter(goes),
        "bytes": func.coalesce(func.sum(size).filter(goes), 0),
        "unknown_sizes": func.count().filter(goes, size.is_(None)),
        "held": func.count().filter(lost, held),
        "oldest": func.min(received_at).filter(goes),
        "newest": func.max(received_at).filter(goes),
    }
