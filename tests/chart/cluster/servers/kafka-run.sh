#!/bin/sh
# As in the official Kafka image: KAFKA_A_B in the environment is a.b in server.properties.
set -eu
properties=/tmp/server.properties
env | sed -n 's/^KAFKA_\([A-Z_]*\)=/\1=/p' | while IFS='=' read -r name value; do
    echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done >"$properties"
java() {
    /usr/bin/java -Xmx384m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*' "$@"
}
java kafka.tools.StorageTool format --ignore-formatted -t "$CLUSTER_ID" -c "$properties"
exec /usr/bin/java -Xmx384m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -cp '/opt/kafka/libs/*' kafka.Kafka "$properties"
