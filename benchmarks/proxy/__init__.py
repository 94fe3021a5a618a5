"""What the proxy adds to a call, beside nothing at all and beside a plain reverse proxy."""
