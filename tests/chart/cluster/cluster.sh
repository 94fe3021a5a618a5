#!/bin/bash
# A one-node Kubernetes in a network, mount and process namespace of its own.
#
#   cluster.sh up             start it and wait until its node is ready
#   cluster.sh exec CMD...    run a command inside (kubectl, helm, curl, ...)
#   cluster.sh load FILE.tar  import a docker or OCI archive into containerd
#   cluster.sh down           stop everything and remove what it left
#
# NODE=no starts only etcd and the API server (3 s: enough for strict
# validation); else also a real node: containerd, kubelet, kube-proxy, CoreDNS.
# BIN is the folder of `kube` and helm, whose images/*.tar are loaded;
# STATE is where data and logs go. Inside, no network but its own is reached.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
export BIN=${BIN:-$HOME/.cache/inference-store/cluster} STATE=${STATE:-${TMPDIR:-/tmp}/kube-test} NODE=${NODE:-yes}
export KUBECONFIG=$STATE/kubeconfig
POD_NET=10.244.0.0/16
SERVICE_NET=10.96.0.0/16
NODE_IP=10.200.0.1
DNS_IP=10.96.0.10
# Two clusters of one machine have different folders.
CGROUP=kube-test-$(cksum <<<"$STATE" | cut -d" " -f1)

inside() { nsenter --target "$(cat "$STATE/pid")" --net --mount --pid env --chdir="$PWD" PATH="$STATE/bin:$BIN:$PATH" "$@"; }

spawn() { # name command...: in the background, with its log in $STATE/log
    local name=$1
    shift
    "$@" >"$STATE/log/$name.log" 2>&1 </dev/null &
    echo "$!" >"$STATE/log/$name.pid"
}

wait_for() { # seconds what command...
    local limit=$1 what=$2
    shift 2
    for ((end = SECONDS + limit; SECONDS < end; )); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "cluster.sh: no $what after $limit s; see $STATE/log" >&2
    return 1
}

prepare() {
    # What the parts leave at fixed places goes away with the namespace.
    for folder in /run /var/lib/cni /var/log/containers; do
        mkdir -p $folder
        mount -t tmpfs tmpfs $folder
    done
    ip link set lo up
    ip link add node0 type veth peer name node1
    ip address add $NODE_IP/24 dev node0
    ip link set node0 up
    ip link set node1 up
    ip route add default dev node0
    sysctl -qw net.ipv4.ip_forward=1
}

control_plane() {
    local pki=$STATE/pki
    mkdir -p "$pki"
    openssl genrsa -out "$pki/service-account.key" 2048 2>/dev/null
    local token
    token=$(openssl rand -hex 16)
    echo "$token,admin,admin,system:masters" >"$pki/tokens.csv"

    spawn etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380
    spawn kube-apiserver kube-apiserver \
        --etcd-servers http://127.0.0.1:2379 --cert-dir "$pki" \
        --advertise-address $NODE_IP --secure-port 6443 --service-cluster-ip-range $SERVICE_NET \
        --token-auth-file "$pki/tokens.csv" --authorization-mode RBAC --allow-privileged \
        --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$pki/service-account.key" \
        --service-account-signing-key-file "$pki/service-account.key" \
        --kubelet-preferred-address-types InternalIP
    wait_for 300 "API server's certificate" test -s "$pki/apiserver.crt"
    kubectl config set-cluster test --server https://$NODE_IP:6443 --certificate-authority "$pki/apiserver.crt" --embed-certs
    kubectl config set-credentials admin --token "$token"
    kubectl config set-context test --cluster test --user admin
    kubectl config use-context test
    chmod 600 "$KUBECONFIG"
    wait_for 300 "API server" kubectl get --raw /readyz
    [ "$NODE" = yes ] || return 0

    spawn kube-controller-manager kube-controller-manager --kubeconfig "$KUBECONFIG" \
        --use-service-account-credentials --leader-elect=false \
        --service-account-private-key-file "$pki/service-account.key" --root-ca-file "$pki/apiserver.crt" \
        --allocate-node-cidrs --cluster-cidr $POD_NET
    spawn kube-scheduler kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false
    wait_for 300 "service account" kubectl get serviceaccount default
    volumes | kubectl apply -f -
}

volumes() { # ten local volumes: unlike host paths, a pod's fsGroup works on them
    cat <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
YAML
    for i in {0..9}; do
        mkdir -p "$STATE/volumes/$i"
        cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local-$i}
spec:
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce, ReadWriteMany]
  storageClassName: local
  local: {path: $STATE/volumes/$i}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]
YAML
    done
}

real_node() {
    mkdir -p "$STATE/cni" "$STATE/vm" "$STATE/kernel"
    cat >"$STATE/containerd.toml" <<TOML
version = 2
root = "$STATE/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "$STATE/cni"
TOML
    cat >"$STATE/cni/10-bridge.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/ipam", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
    cat >"$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
podLogsDir: $STATE/pod-logs
resolvConf: /dev/null
YAML
    # The kubelet would write these for the whole machine: show it that they are so.
    for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
        echo "${setting#*=}" >"$STATE/${setting%%=*}"
        mount --bind "$STATE/${setting%%=*}" "/proc/sys/${setting%%=*}"
    done
    for controller in /sys/fs/cgroup/*/; do
        [ -e "$controller/cgroup.procs" ] && mkdir -p "$controller/$CGROUP"
    done
    spawn containerd containerd --config "$STATE/containerd.toml"
    wait_for 300 containerd ctr version
    for image in "$BIN"/images/*.tar; do
        ctr --namespace k8s.io image import "$image"
    done
    spawn kubelet kubelet --config "$STATE/kubelet.yaml" --kubeconfig "$KUBECONFIG" \
        --root-dir "$STATE/kubelet" --cert-dir "$STATE/pki" --node-ip $NODE_IP --hostname-override node
    spawn kube-proxy kube-proxy --kubeconfig "$KUBECONFIG" --hostname-override node --cluster-cidr $POD_NET \
        --conntrack-max-per-core 0 --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0
    # The cluster's DNS is on the node itself, at the address which pods are told.
    ip address add $DNS_IP/32 dev node0
    cat >"$STATE/Corefile" <<CORE
.:53 {
    bind $DNS_IP
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $KUBECONFIG
    }
}
CORE
    spawn coredns coredns -conf "$STATE/Corefile"
}

case ${1:-} in
up)
    mkdir -p "$STATE/log" "$STATE/bin"
    for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns; do
        ln -sf "$BIN/kube" "$STATE/bin/$name"
    done
    # The first process of the namespaces: when it ends, all of them end.
    # It says that their /proc is mounted.
    unshare --net --mount --pid --fork --kill-child --mount-proc \
        bash -c 'touch "$STATE/mounted"; while :; do sleep 3600 & wait; done' >/dev/null 2>&1 </dev/null &
    holder=$!
    wait_for 300 namespace test -e "$STATE/mounted"
    pgrep -P $holder >"$STATE/pid"
    inside "$here/cluster.sh" _up >"$STATE/log/up.log" 2>&1 || { tail -5 "$STATE/log/up.log" >&2; exit 1; }
    ;;
_up)
    prepare
    control_plane
    if [ "$NODE" = yes ]; then
        real_node
        wait_for 300 "ready node" kubectl wait --for condition=Ready node --all --timeout 1s
    fi
    ;;
exec)
    shift
    inside "$@"
    ;;
load)
    inside ctr --namespace k8s.io image import "$2"
    ;;
down)
    kill -KILL "$(cat "$STATE/pid")" || true
    for ((i = 0; i < 600; i++)); do
        for controller in /sys/fs/cgroup/*/; do
            if [ -d "$controller/$CGROUP" ]; then
                find "$controller/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
            fi
        done
        compgen -G "/sys/fs/cgroup/*/$CGROUP" >/dev/null || break
        sleep 0.1
    done
    rm -rf "$STATE"
    ;;
*)
    sed -n '2,14s/^# \?//p' "$0"
    exit 2
    ;;
esac
