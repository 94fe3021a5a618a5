"""A model server of the Open Inference Protocol, version 2, over REST and gRPC.

`python -m inference_store.local.demo.model_server <REST port> <gRPC port>`; with `--small` it
serves a classifier of digits alone, which needs no package beside the services' own.

It knows nothing of the store, like any model server behind the proxy: each input is an encoded
picture (BYTES; base64 in JSON), each output the list of the model's findings in it.
"""
