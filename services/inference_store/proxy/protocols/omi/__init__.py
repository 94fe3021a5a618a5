"""OMI, Modzy's container specification: `Run` over gRPC, one inference per input item.

An item is a set of named files: the datum is the only file, or all of them as JSON by name. The
answer is V2's JSON: one output with the predictions of the result file, and all files under
`files`, including explanations and drift.
"""

import re
from typing import Final

from inference_store.proxy.protocols.protocol import Protocol

from .exchange_reading import read

RUN: Final = "/ModzyModel/Run"
OMI: Final = Protocol(
    name="omi",
    transport="grpc",
    calls="`Run` of `ModzyModel`",
    datum="an item's only file, or its files as JSON by name",
    answer="`classPredictions` as `{label, score}`, and all `files`",
    path=re.compile(RUN),
    read=read,
)
