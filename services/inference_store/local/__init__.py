"""The whole store on a laptop: Postgres, S3 and Kafka from wheels, and the services as processes.

Nothing here imports the internals of a service: each is started by its name, as an operator would.
"""
