#!/bin/sh
# Makes the cluster on an empty volume, runs /docker-entrypoint-initdb.d/*.sql once, and serves.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin) data=/var/lib/postgresql/data
as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
if [ ! -s $data/PG_VERSION ]; then
    chown postgres:postgres $data && chmod 700 $data
    install -o postgres -m 600 "$POSTGRES_PASSWORD_FILE" /tmp/word
    # shellcheck disable=SC2086 # several arguments
    as "$bin/initdb" -D $data -U postgres --auth=scram-sha-256 --pwfile=/tmp/word --no-sync $POSTGRES_INITDB_ARGS
    rm /tmp/word
    printf 'local all all trust\nhost all all all scram-sha-256\n' > $data/pg_hba.conf
    as "$bin/pg_ctl" -D $data -w -o "-c listen_addresses= -c unix_socket_directories=/tmp" start
    for file in /docker-entrypoint-initdb.d/*.sql; do
        as "$bin/psql" -h /tmp -U postgres -v ON_ERROR_STOP=1 -q -f "$file"
    done
    as "$bin/pg_ctl" -D $data -w -m fast stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups "$bin/postgres" -D $data \
    -c listen_addresses='*' -c unix_socket_directories=/tmp -c max_connections=200
