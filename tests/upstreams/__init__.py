"""What stands behind the proxy in its tests: real model servers, from PyPI.

MLServer, its runtime for Hugging Face, Triton and KServe are as their wheels have them; torch alone
is Debian's.

`python -m tests.upstreams` makes their environments in the cache folder of the tests' servers.
engines/ is run by the upstreams' own Pythons and imported by nothing here.
"""
