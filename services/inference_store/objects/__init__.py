"""The object store: reads, writes and deletes objects, and proves that deleted ones are gone."""

from .blobs import NOT_ALLOWED as NOT_ALLOWED
from .blobs import Blobs as Blobs
from .bucket import LockedObject as LockedObject
from .deletion import Deleted as Deleted
from .deletion import DeleteFault as DeleteFault
from .deletion import Listed as Listed
from .links import EXPIRES as EXPIRES
from .links import SIGNATURE as SIGNATURE
from .listing import Found as Found
from .rewriting import READ_AGAIN as READ_AGAIN
from .rewriting import Overwritten as Overwritten
from .rewriting import Rewrite as Rewrite
from .segments import Contents as Contents
from .transfers import OVER_BUDGET as OVER_BUDGET
from .transfers import BlobStream as BlobStream
from .transfers import Fetched as Fetched
