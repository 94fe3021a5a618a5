"""The programs that read what the store exports, as their wheels have them; torch is Debian's.

`python -m tests.readers` makes their environment in the cache folder of the tests' servers. None
of them is in the tests' own environment. scripts/ is run by their Python and imported by nothing
here.
"""
