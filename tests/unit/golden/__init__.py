"""Formats that others have stored or wired up do not change: files hold them, byte for byte."""
