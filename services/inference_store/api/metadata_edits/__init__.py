"""Edits of an inference's metadata: items are added or replaced."""

from .blob_key import reserve
from .change import Change, Item, check_change
from .edit import Editor, edit

__all__ = ["Change", "Editor", "Item", "check_change", "edit", "reserve"]
