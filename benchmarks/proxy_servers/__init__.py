"""Compares HTTP servers below the proxy: CPU for each call, and the cases of the wire that hold."""
