"""`make bench-api`: a request's way through the api, beside a bare route that asks the same."""
