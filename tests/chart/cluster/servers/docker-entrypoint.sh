#!/bin/sh
# As in the official Postgres image: make the database at the first start, then run it.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" >"$password"
    "$bin/initdb" --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile "$password" \
        --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C.UTF-8
    rm "$password"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | "$bin/postgres" --single -D "$PGDATA" postgres
fi
shift
exec "$bin/postgres" -D "$PGDATA" -c listen_addresses='*' "$@"
