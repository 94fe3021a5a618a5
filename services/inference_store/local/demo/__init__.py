"""Real input for the local stack: detectors over photographs, a classifier of digits.

Everything comes from wheels; nothing is downloaded at run time. A model server of the Open
Inference Protocol serves them, and the demo is its client: it sends each picture through the proxy,
which captures the call.
"""
