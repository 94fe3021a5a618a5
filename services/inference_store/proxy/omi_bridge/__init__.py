"""A bridge that lets an OMI container answer the Open Inference Protocol, over REST and gRPC.

`Bridge` listens only on this machine; for the proxy it is an upstream like any other, so that calls
are routed and captured as usual. File names are tensor names, both ways.
"""

from .bridge import Bridge, open_bridges
from .container import Container, ContainerFailed

__all__ = ["Bridge", "Container", "ContainerFailed", "open_bridges"]
