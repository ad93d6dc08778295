"""Profiles written by hand, as text protos, in the shape that profilers give theirs; times in microseconds.

Two devices run one step three times, 400 us each: 70 us of waiting for the host, then

    dot.1           70..170  (device 1: 70..190)
    all-gather      80..200  beside it; awaited to its end
    fusion.1       200..240
    dot.2          240..320
    all-reduce     320..370
    nothing        370..390
    copy to host   390..400
"""

from jax.profiler import ProfileData

STEPS, PERIOD = 3, 400
DOT_1_END = (170, 190)      # by device
AXES = {"data": 2, "tensor": 2}
HLO = """HloModule jit_step, is_scheduled=true, num_partitions=4

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%doubled (z: f32[64,64]) -> f32[64,64] {
  %z = f32[64,64]{1,0} parameter(0)
  ROOT %add.1 = f32[64,64]{1,0} add(%z, %z)
}

ENTRY %main (p0: f32[16,64], p1: f32[64,64]) -> f32[64,64] {
  %p0 = f32[16,64]{1,0} parameter(0)
  %p1 = f32[64,64]{1,0} parameter(1)
  %all-gather-start.1 = (f32[16,64]{1,0}, f32[64,64]{1,0}) all-gather-start(%p0), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %dot.1 = f32[64,64]{1,0} dot(%p1, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/dot_general" source_file="/home/you/train.py" source_line=7}
  %all-gather-done.1 = f32[64,64]{1,0} all-gather-done(%all-gather-start.1)
  %fusion.1 = f32[64,64]{1,0} fusion(%all-gather-done.1), kind=kLoop, calls=%doubled
  %dot.2 = f32[64,64]{1,0} dot(%fusion.1, %dot.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %all-reduce.1 = f32[64,64]{1,0} all-reduce(%dot.2), channel_id=2, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%sum
  %copy-start.1 = (f32[64,64]{1,0:S(5)}, f32[64,64]{1,0}, u32[]) copy-start(%all-reduce.1)
  ROOT %copy-done.1 = f32[64,64]{1,0:S(5)} copy-done(%copy-start.1)
}
"""  # noqa: E501  one instruction a line
# Of a device and step, by hand: the mean of device 0 (dot.1 100 us, gather exposed 30) and 1 (120, 10).
LEDGER_US = {
    "matmul": (100 + 80 + 120 + 80) / 2,
    "host": 70,
    "exposed tensor": 50,
    "memory-bound": 40,
    "exposed data+tensor": (30 + 10) / 2,
    "idle": 20,
    "exposed host transfers": 10,
}


class Plane:
    """A plane that is being written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own = ""       # statistics of the plane itself
        self.lines: dict[str, list[str]] = {}
        self.stats: dict[str, int] = {}
        self.events: dict[str, tuple[int, str]] = {}

    def stat(self, name: str, value: str | int) -> str:
        number = self.stats.setdefault(name, len(self.stats) + 1)
        kind = f'str_value: "{value}"' if isinstance(value, str) else f"int64_value: {value}"
        return f"stats {{ metadata_id: {number} {kind} }}"

    def metadata(self, name: str, display: str = "", **stats: str | int) -> int:
        if name not in self.events:
            said = " ".join(self.stat(key, value) for key, value in stats.items())
            shown = f'display_name: "{display}" ' if display else ""
            number = len(self.events) + 1
            self.events[name] = number, f'{{ id: {number} name: "{name}" {shown}{said} }}'
        return self.events[name][0]

    def add(self, line: str, number: int, start_us: float, duration_us: float, **stats: str | int) -> None:
        said = " ".join(self.stat(key, value) for key, value in stats.items())
        times = f"offset_ps: {round(start_us * 1e6)} duration_ps: {round(duration_us * 1e6)}"
        self.lines.setdefault(line, []).append(f"events {{ metadata_id: {number} {times} {said} }}")

    def text(self) -> str:
        parts = [f'planes {{ name: "{self.name}" {self.own}']
        for i, (name, events) in enumerate(self.lines.items(), start=1):
            parts.append(f'lines {{ id: {i} name: "{name}" timestamp_ns: 1700000000000000000 {" ".join(events)} }}')
        parts += [f"event_metadata {{ key: {number} value {value} }}" for number, value in self.events.values()]
        names = self.stats.items()
        parts += [f'stat_metadata {{ key: {n} value {{ id: {n} name: "{name}" }} }}' for name, n in names]
        return "\n".join([*parts, "}"])


def space(*planes: Plane, said: str = "") -> bytes:
    errors = f'errors: "{said}"' if said else ""
    return ProfileData.text_proto_to_serialized_xspace(
        "\n".join([*(plane.text() for plane in planes), 'hostnames: "worker-0"', errors])
    )


def operations(device: int) -> list[tuple[str, float, float]]:
    """What runs one at a time: (name, begin, end) within a step."""
    end = DOT_1_END[device]
    return [
        ("dot.1", 70, end),
        ("all-gather-done.1", end, 200),
        ("fusion.1", 200, 240),
        ("dot.2", 240, 320),
        ("all-reduce.1", 320, 370),
        ("copy-done.1", 390, 400),
    ]


def tpu(steps_line: bool = True) -> bytes:
    """As TPUs' profilers write: names and categories in the metadata, transfers' spans on a line of their own."""
    categories = {"dot": "convolution", "all-gather-done": "all-gather", "fusion": "loop fusion"}
    planes = []
    for device in range(2):
        plane = Plane(f"/device:TPU:{device}")
        for step in range(STEPS):
            at = step * PERIOD
            if steps_line:
                plane.add("Steps", plane.metadata(str(step)), at, PERIOD, step_num=step)
            plane.add("XLA Modules", plane.metadata("jit_step(20)"), at + 70, PERIOD - 70, run_id=step)
            for name, begin, end in operations(device):
                stem = name.rpartition(".")[0]
                category = categories.get(stem, stem)
                row = plane.metadata(f"%{name} = f32[64,64]{{1,0}} op()", name, hlo_category=category, program_id=20)
                plane.add("XLA Ops", row, at + begin, end - begin)
            span = plane.metadata("%all-gather-start.1 = () op()", "all-gather-start.1", hlo_category="all-gather")
            plane.add("Async XLA Ops", span, at + 80, 120)
        planes.append(plane)
    return space(*planes, Plane("/host:CPU"))


STREAMS = {"all": "Stream #23(Kernel)", "cop": "Stream #31(MemcpyD2H)"}
KERNELS = {
    "dot.1": "nvjet_tst_128x64_NNT",
    "all-gather-start.1": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)",
    "fusion.1": "loop_add_fusion",
    "dot.2": "cutlass_80_tensorop_gemm",
    "all-reduce.1": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
    "copy-done.1": "MemcpyD2H",
}


def gpu(named: bool = True, launches: bool = True, graphs: bool = False, annotations: bool = True) -> bytes:
    """As CUPTI's collector in XLA writes: a line a stream, launches on the host's threads joined by correlation ids.

    Args:
        named: kernels carry their HLO instruction. graphs: those that compute are launched by a CUDA graph.
    """
    host = Plane("/host:CPU")
    planes = [host]
    correlation = 0
    for device in range(2):
        plane = Plane(f"/device:GPU:{device}")
        for step in range(STEPS):
            at = step * PERIOD
            if annotations and not device:
                host.add("python", host.metadata("train"), at, PERIOD - 10, step_num=step)
            kernels = [one for one in operations(device) if one[0] != "all-gather-done.1"]
            for name, begin, end in [*kernels, ("all-gather-start.1", 80, 200)]:
                correlation += 1
                stats: dict[str, str | int] = {"correlation_id": correlation}
                in_graph = graphs and name in ("dot.1", "fusion.1", "dot.2")
                if named and not in_graph and name != "copy-done.1":
                    stats |= {"hlo_op": name, "hlo_module": "jit_step", "program_id": 20}
                if in_graph:
                    stats |= {"cuda_graph_id": 3, "hlo_op": "command_buffer", "hlo_module": "jit_step"}
                stream = STREAMS.get(name[:3], "Stream #13(Kernel)")
                plane.add(stream, plane.metadata(KERNELS[name]), at + begin, end - begin, **stats)
                if launches:
                    host.add("launcher", host.metadata("cuLaunchKernelEx"), at + 5, 1, correlation_id=correlation)
        planes.append(plane)
    return space(*planes)
