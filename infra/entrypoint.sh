#!/bin/sh
# Secrets come as files. Programs that take one from their environment alone are given it here: with
# NAME_FROM_FILE=/run/secrets/x, NAME is what the file holds, in this process and nowhere that `docker inspect` or a
# manifest would show it.
set -eu
for name in $(env | sed -n 's/^\([A-Z][A-Z0-9_]*\)_FROM_FILE=.*/\1/p'); do
    file=$(printenv "${name}_FROM_FILE")
    [ -r "$file" ] || { echo "${name}_FROM_FILE: $file cannot be read" >&2; exit 1; }
    export "$name=$(cat "$file")"
    unset "${name}_FROM_FILE"
done
exec "$@"
