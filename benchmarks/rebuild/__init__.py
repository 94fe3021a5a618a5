"""How fast the index is rebuilt from the bucket, beside how fast it was made from Kafka."""
