"""How fast the index is made anew from the bucket, beside how fast it was made from Kafka."""
