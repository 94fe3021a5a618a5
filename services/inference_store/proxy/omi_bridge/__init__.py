"""A bridge: an OMI container answers the Open Inference Protocol, over REST and gRPC.

`Bridge` listens on this machine alone; the proxy has it as an upstream like any other, so that
calls are routed and captured as everybody's. File names are tensor names, both ways.
"""

from .bridge import Bridge
from .bridging import bridged
from .container import Container, ContainerFailed

__all__ = ["Bridge", "Container", "ContainerFailed", "bridged"]
