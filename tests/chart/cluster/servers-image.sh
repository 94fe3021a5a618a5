#!/bin/bash
# Make localhost/servers:2, one image with Postgres, Kafka and MinIO, from Debian's packages and
# from the jars and the binary that the other tests use:
#
#   servers-image.sh KAFKA_JARS MINIO_BINARY
#
# Each is started by the command that its official image has, so that the chart's in-chart servers
# run from it unchanged.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
BIN=${BIN:-$HOME/.cache/inference-store/cluster}
mkdir -p "$BIN/images"
root=$(mktemp --suffix .tar)
trap 'rm -f "$root"' EXIT
"$here/debian.sh" "$root" postgresql,default-jre-headless,ca-certificates
container=$(buildah from scratch)
buildah add --quiet "$container" "$root" /
# The users of the official images: initdb asks for their names.
mounted=$(buildah mount "$container")
printf '%s\n' 'server999:x:999:999::/tmp:/bin/sh' 'server1000:x:1000:1000::/tmp:/bin/sh' >>"$mounted/etc/passwd"
ln -s minio "$mounted/usr/bin/silo" # the maintained fork's name, which the chart starts
buildah umount "$container" >/dev/null
buildah copy --quiet --chmod 755 "$container" "$here/servers/docker-entrypoint.sh" /usr/local/bin/
buildah copy --quiet --chmod 755 "$container" "$here/servers/kafka-run.sh" /etc/kafka/docker/run
buildah copy --quiet "$container" "$1" /opt/kafka/libs
buildah copy --quiet --chmod 755 "$container" "$2" /usr/bin/minio
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit --quiet --rm "$container" localhost/servers:2
rm -f "$BIN"/images/servers*.tar
buildah push --quiet localhost/servers:2 "docker-archive:$BIN/images/servers-2.tar.new:localhost/servers:2"
mv "$BIN/images/servers-2.tar.new" "$BIN/images/servers-2.tar"
