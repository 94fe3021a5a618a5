"""Real input for the local stack: detectors over photographs, a classifier of digits.

Everything comes from wheels; nothing is downloaded when it runs. It is fed as any producer would
feed it: three blobs to S3, then an event of nine fields to Kafka.
"""
