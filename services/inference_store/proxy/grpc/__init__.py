"""gRPC in front of any model server: bytes pass both ways without being decoded."""

from .server import MESSAGE_BYTES as MESSAGE_BYTES
from .server import Calls as Calls
from .server import channel as channel
from .server import list_limits as list_limits
from .server import open_grpc_port as open_grpc_port
from .server import server as server
