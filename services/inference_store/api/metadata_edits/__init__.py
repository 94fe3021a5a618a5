"""Edits of an inference's metadata: items are added or replaced."""

from .change import Change, Item, change_of
from .edit import Editor, edit
from .place import reserve

__all__ = ["Change", "Editor", "Item", "change_of", "edit", "reserve"]
