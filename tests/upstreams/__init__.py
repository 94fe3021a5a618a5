"""What stands behind the proxy in its tests: real model servers and clients, from PyPI.

MLServer, its runtime for Hugging Face, Triton and KServe are as their wheels have them; torch alone
is Debian's. Where no server could be had, what was written for the tests says so: an engine or a
container is written from a public specification and answers truly; a stub only has the wire form.

`python -m tests.upstreams` makes their environments in the cache folder of the tests' servers.
engines/ is run by the upstreams' own Pythons and imported by nothing here.
"""
