"""Adding to the metadata of an inference, or changing it, after the fact."""

from .change import Change, Item, change_of
from .edit import Editor, edit
from .place import reserve

__all__ = ["Change", "Editor", "Item", "change_of", "edit", "reserve"]
