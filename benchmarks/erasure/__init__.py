"""What erasing costs, beside plain DELETEs of the same rows and bulk deletes of S3 by itself."""
