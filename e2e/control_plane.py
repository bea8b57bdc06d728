"""The argument lists of etcd, kube-apiserver and kube-controller-manager on loopback.

Owns what differs from a cluster as kubeadm makes it, each with its reason. Pure: starts nothing,
reads nothing. Everything that is not named here is the server's own default: Pod Security, quotas,
CEL, API priority, service account tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.certificates import KeyPair

HOST: Final = "127.0.0.1"
SERVICE_RANGE: Final = "10.96.0.0/16"
SERVER_NAMES: Final = (
    *("localhost", HOST, "10.96.0.1"),
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    "kubernetes.default.svc.cluster.local",
)
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
# No node has a kubelet that renews a heartbeat, and there is no cloud.
DISABLED: Final = (
    *("node-lifecycle-controller", "node-ipam-controller", "taint-eviction-controller"),
    *("service-lb-controller", "node-route-controller", "cloud-node-lifecycle-controller"),
)


@dataclass(frozen=True, slots=True)
class Ports:
    """All on loopback."""

    etcd: int
    etcd_peer: int
    api: int
    controllers: int


@dataclass(frozen=True, slots=True)
class Keys:
    """What the servers prove themselves with."""

    ca_file: Path
    api_server: KeyPair
    service_accounts: KeyPair


def etcd(data: Path, ports: Ports) -> list[str]:
    """Without fsync: the data outlive a killed process, which is all that a test asks for."""
    client, peer = f"http://{HOST}:{ports.etcd}", f"http://{HOST}:{ports.etcd_peer}"
    return [
        f"--data-dir={data}",
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(ports: Ports, keys: Keys) -> list[str]:
    """RBAC only: there is no kubelet to authorise."""
    return [
        *(f"--bind-address={HOST}", f"--advertise-address={HOST}"),
        f"--secure-port={ports.api}",
        f"--etcd-servers=http://{HOST}:{ports.etcd}",
        f"--client-ca-file={keys.ca_file}",
        f"--tls-cert-file={keys.api_server.cert}",
        f"--tls-private-key-file={keys.api_server.key}",
        "--authorization-mode=RBAC",
        "--allow-privileged",  # that is for Pod Security to refuse, by namespace
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={keys.service_accounts.cert}",
        f"--service-account-signing-key-file={keys.service_accounts.key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--endpoint-reconciler-type=none",  # it may not name loopback
        "--profiling=false",
    ]


def controller_manager(ports: Ports, keys: Keys, kubeconfig: Path) -> list[str]:
    """Every controller but those that need real nodes; with limits that do not slow it down."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        *(f"--bind-address={HOST}", f"--secure-port={ports.controllers}"),
        f"--root-ca-file={keys.ca_file}",
        f"--service-account-private-key-file={keys.service_accounts.key}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--controllers=*,{','.join(f'-{name}' for name in DISABLED)}",
        *("--kube-api-qps=200", "--kube-api-burst=400"),
        "--pvclaimbinder-sync-period=1s",
        "--profiling=false",
    ]
