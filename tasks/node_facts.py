"""What a node is and what its NICs have counted: the half of the node part that only looks.

Standard library alone, Python 3.9 or newer: it travels as text with `tasks/node_part.py`. One collector per source; a
source that is missing, or not understood, is a missing fact.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # typing itself is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

VIRTUAL = re.compile(
    r"lo|br|docker|virbr|veth|tun|tap|cni|flannel|cali|cilium|vnet|vxlan|dummy|ifb|wg|sit|gre|ip6|bond"
)
"""How plumbing is named. A veth end with a name of its own is what a container or a namespace has for a NIC."""

SHARP_LIBRARY = re.compile(r"(?:.*/)?lib(?:sharp|nccl-net|hcoll)[^/]*\.so[^/]*")
NET_DEV = {"rx_bytes": 0, "rx_packets": 1, "rx_errors": 2, "rx_drops": 3}
NET_DEV |= {"tx_bytes": 8, "tx_packets": 9, "tx_errors": 10, "tx_drops": 11}
PORT_DATA = {"port_xmit_data": "tx_bytes", "port_rcv_data": "rx_bytes"}


LIBRARIES = """\
import ctypes

def ucx(library):
    library.ucp_get_version_string.restype = ctypes.c_char_p
    return library.ucp_get_version_string().decode(errors="replace")

def libfabric(library):
    version = library.fi_version()
    return f"{version >> 16 & 65535}.{version & 65535}"

def nccl(library):
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    major = 10000 if code.value >= 10000 else 1000
    return f"{code.value // major}.{code.value % major // 100}.{code.value % 100}"

def mpi(library):
    text, size = ctypes.create_string_buffer(1 << 14), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(size))
    return text.value.decode(errors="replace")

for name, ask in {
    "libucp.so.0": ucx, "libfabric.so.1": libfabric, "libnccl.so.2": nccl, "librccl.so.1": nccl,
    "libmpi.so.40": mpi, "libmpi.so.12": mpi,
}.items():
    try:
        version = ask(ctypes.CDLL(name))
    except (OSError, AttributeError):
        continue
    print(f"{name} is version", " ".join(version.strip().split(chr(10))[0].split()), flush=True)
"""
"""A program that asks the libraries that the loader finds, by their own functions; one that crashes ends it there."""
LIBRARY_VERSION = re.compile(r"^(lib\w+\.so\.\d+) is version (.+)$", re.MULTILINE)

MODULES = ("nvidia", "amdgpu", "ib_core", "mlx5_core", "bnxt_re", "irdma", "efa", "hfi1")
"""Drivers of GPUs and NICs; one that came with the kernel has no version of its own."""


def facts(env: Mapping[str, str], output: Callable[[list[str], dict[str, str]], str] | None = None) -> dict[str, Any]:
    """Everything that can be said of this node, for a program that runs with `env`.

    With `output`, which tells what a program prints, the libraries are asked for their versions, too.
    """
    found: dict[str, str] = {}
    for collect in (system, cpu, limits, folders, libraries, drivers, configuration):
        try:
            found.update(collect(env))
        except (OSError, ValueError, LookupError):
            continue
    if output is not None:
        said = output([sys.executable, "-I", "-S", "-c", LIBRARIES], dict(env))
        found.update(LIBRARY_VERSION.findall(said))
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)
    return {
        "host": socket.gethostname(),
        "cpus": usable_cpus(),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
        "nics": infiniband() + ethernet(),
        "facts": {name: value for name, value in found.items() if value},
    }


def counters() -> dict[str, Any]:
    """One look at the counters of all network devices and RDMA ports of this node, and when it was."""
    t = time.monotonic()
    found = {
        name: {counter: values[column] for counter, column in NET_DEV.items()}
        for name, values in network_devices().items()
    }
    for device, port in rdma_ports():
        folder = f"/sys/class/infiniband/{device}/ports/{port}/counters"
        texts = {counter: read(f"{folder}/{counter}") for counter in names_in(folder)}
        found[f"{device}:{port}"] = {  # the data counters count words of four bytes
            PORT_DATA.get(counter, counter): int(text) * (4 if counter in PORT_DATA else 1)
            for counter, text in texts.items()
            if text.isdigit()
        }
    return {"t": t, "nics": found}


def read_bytes(path: str) -> bytes:
    """A file's content; empty where there is none to read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - importing pathlib costs a fifth of the node part's start
            return file.read()
    except OSError:
        return b""


def read(path: str) -> str:
    """A file's text without surrounding blanks; empty where there is none to read."""
    return os.fsdecode(read_bytes(path)).strip()


def names_in(folder: str) -> list[str]:
    """Sorted names in a folder; none where there is no folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - as above
    except OSError:
        return []


def number(text: str) -> float | None:
    """A number, or None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None


def numa(path: str) -> int | None:
    """A NUMA node; -1 in /sys means that the machine does not say."""
    found = number(read(path))
    return int(found) if found is not None and found >= 0 else None


def rdma_ports() -> Iterator[tuple[str, str]]:
    """Device and port number of every RDMA port."""
    for device in names_in("/sys/class/infiniband"):
        for port in names_in(f"/sys/class/infiniband/{device}/ports"):
            yield device, port


def infiniband() -> list[dict[str, Any]]:
    """Every RDMA port, as `schemas.plan.Nic` has it."""
    found = []
    for device, port in rdma_ports():
        root = f"/sys/class/infiniband/{device}"
        place = f"{root}/ports/{port}"
        found.append(
            {
                "name": f"{device}:{port}",
                "link_layer": read(f"{place}/link_layer").lower() or "infiniband",
                "rate_gbps": number(read(f"{place}/rate").partition(" ")[0]),  # "400 Gb/sec (4X NDR)"
                "state": read(f"{place}/state").rpartition(" ")[2] or None,  # "4: ACTIVE"
                "numa": numa(f"{root}/device/numa_node"),
                "address": read(f"{place}/gids/0") or None,
                "firmware": read(f"{root}/fw_ver") or None,
            }
        )
    return found


def ethernet() -> list[dict[str, Any]]:
    """Physical devices of this network namespace; where it has none, those that are up and no plumbing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        devices = [Device(probe, name) for name in network_devices()]
    physical = [device for device in devices if device.physical]
    return [device.nic() for device in physical or devices if device.physical or device.plain]


class Device:
    """A network device, asked by ioctl: /sys may show another namespace's, and is believed only where both agree."""

    def __init__(self, probe: socket.socket, name: str) -> None:
        self.name, self.root = name, f"/sys/class/net/{name}"
        flags = struct.unpack_from("H", request(probe, 0x8913, name), 16)[0]  # SIOCGIFFLAGS
        self.up = flags & 0x41 == 0x41  # IFF_UP and IFF_RUNNING
        self.plain = self.up and not flags & 8 and not VIRTUAL.match(name)  # IFF_LOOPBACK
        packed = request(probe, 0x8915, name)[20:24]  # SIOCGIFADDR
        self.address = socket.inet_ntoa(packed) if any(packed) else None
        hardware = ":".join(f"{byte:02x}" for byte in request(probe, 0x8927, name)[18:24])  # SIOCGIFHWADDR
        index = struct.unpack_from("i", request(probe, 0x8933, name), 16)[0]  # SIOCGIFINDEX
        # InfiniBand addresses are longer than the six bytes that an ioctl returns
        believed = read(f"{self.root}/ifindex") == str(index) and read(f"{self.root}/address").startswith(hardware)
        self.physical = believed and os.path.exists(f"{self.root}/device")  # noqa: PTH110 - as above

    def nic(self) -> dict[str, Any]:
        """As `schemas.plan.Nic` has it. Only a physical device's rate is one: a veth claims 10 Gbit/s."""
        mbps = number(read(f"{self.root}/speed")) if self.physical else None
        return {
            "name": self.name,
            "link_layer": "ethernet",
            "rate_gbps": mbps / 1000 if mbps and mbps > 0 else None,
            "state": "ACTIVE" if self.up else "DOWN",
            "numa": numa(f"{self.root}/device/numa_node") if self.physical else None,
            "address": self.address,
            "firmware": None,
        }


def network_devices() -> dict[str, list[int]]:
    """Devices of this network namespace with the sixteen numbers of /proc/net/dev (unlike /sys, never another's)."""
    rows = (line.rpartition(":") for line in read("/proc/net/dev").split("\n")[2:])
    return {name.strip(): [int(value) for value in values.split()] for name, _, values in rows}


def request(probe: socket.socket, number: int, name: str) -> bytes:
    """netdevice(7): a `struct ifreq` as the kernel fills it; zeros where it has no answer."""
    try:
        return fcntl.ioctl(probe, number, struct.pack("40s", name.encode()[:15]))
    except OSError:
        return bytes(40)


def cgroup(controller: str, newer: str, older: str) -> Iterator[str]:
    """A control file's text in our cgroup and all above it, of version 2 (`newer`) or version 1 (`older`)."""
    for line in read("/proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        steps = path.strip("/").split("/")
        for depth in range(len(steps), -1, -1):
            if text := read("/".join([root, *steps[:depth], older if controllers else newer])):
                yield text


def usable_cpus() -> int:
    """CPUs that a process may use here: its affinity, and its cgroup's quota, rounded down but at least 1."""
    count = float(len(os.sched_getaffinity(0)))
    period_v1 = next(cgroup("cpu", "cpu.max", "cpu.cfs_period_us"), "")
    for text in cgroup("cpu", "cpu.max", "cpu.cfs_quota_us"):  # "200000 100000" and "200000"; "max …" and "-1"
        quota, _, period = text.partition(" ")
        quota_us, period_us = number(quota), number(period or period_v1)
        if quota_us and period_us and quota_us > 0:
            count = min(count, quota_us / period_us)
    return max(1, int(count))


def system(_env: Mapping[str, str]) -> dict[str, str]:
    """Kernel, distribution, Python."""
    release = re.search(r'^PRETTY_NAME="?(.*?)"?$', read("/etc/os-release"), re.MULTILINE)
    return {
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "os": release[1] if release else "",
        "python": sys.version.split()[0],
    }


def cpu(_env: Mapping[str, str]) -> dict[str, str]:
    """The CPU's name, and how many the machine has."""
    model = re.search(r"^model name\s*:\s*(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return {"cpu": model[1] if model else "", "cpus_online": str(os.cpu_count())}


def limits(_env: Mapping[str, str]) -> dict[str, str]:
    """What may be locked in memory, and what a cgroup lets us have of it."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    bounds = [int(text) for text in cgroup("memory", "memory.max", "memory.limit_in_bytes") if text.isdigit()]
    bounds = [bound for bound in bounds if bound < 1 << 60]  # version 1 writes "unlimited" as a huge number
    return {
        "memlock_bytes": "unlimited" if locked == resource.RLIM_INFINITY else str(locked),
        "memory_limit_bytes": str(min(bounds)) if bounds else "",
    }


def folders(env: Mapping[str, str]) -> dict[str, str]:
    """Where programs run, and where they put temporary files; whether that may be written."""
    found = {}
    for name, path in {"working_folder": os.getcwd(), "temporary_folder": env.get("TMPDIR", "/tmp")}.items():  # noqa: PTH109, S108 - as above; not used, only named
        found[name] = path
        found[f"{name}_writable"] = "yes" if os.access(path, os.W_OK | os.X_OK) else "no"
    return found


def libraries(env: Mapping[str, str]) -> dict[str, str]:
    """Libraries without which SHARP cannot be: those that the loader's cache or LD_LIBRARY_PATH has."""
    found = {os.fsdecode(path) for path in re.findall(rb"/[^\0]+", read_bytes("/etc/ld.so.cache"))}
    for folder in filter(None, env.get("LD_LIBRARY_PATH", "").split(":")):
        found |= {f"{folder}/{name}" for name in names_in(folder)}
    return {"sharp_libraries": " ".join(sorted(filter(SHARP_LIBRARY.fullmatch, found)))}


def drivers(_env: Mapping[str, str]) -> dict[str, str]:
    """Versions of the drivers that have one."""
    return {f"driver {name}": read(f"/sys/module/{name}/version") for name in MODULES}


def configuration(env: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of the configuration files that change what a library does."""
    import hashlib

    home = env.get("HOME", "")
    paths = ["/etc/nccl.conf", f"{home}/.nccl.conf", "/etc/ucx/ucx.conf", f"{home}/.openmpi/mca-params.conf"]
    paths += [env.get(name, "") for name in ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")]
    texts = {path: read_bytes(path) for path in paths if path}
    return {f"sha256 {path}": hashlib.sha256(text).hexdigest() for path, text in texts.items() if text}
